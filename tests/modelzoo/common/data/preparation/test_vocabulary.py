"""Tests of vocabulary.py: what it trains is read by tokenizers.py and gives the text back."""

from __future__ import annotations

import json

import pytest

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.data.preparation import records, vocabulary
from modelzoo.common.data.preparation.vocabulary import VocabularySettings, train
from modelzoo.common.tokenizers import tokenizers

pytest.importorskip("tokenizers")

ENGLISH = "the red wheel barrow was glazed with rain water beside the white chickens\n" * 30
GERMAN = "die rote Schubkarre war vom Regen glänzend neben den weißen Hühnern\n\n" * 30


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "train.en").write_text(ENGLISH, encoding="utf-8")
    (tmp_path / "train.de").write_text(GERMAN, encoding="utf-8")
    return [str(tmp_path / "train.en"), str(tmp_path / "train.de")]


@pytest.mark.parametrize("algorithm", list(vocabulary.SPECIAL_TOKENS))
def test_trained_vocabulary_gives_text_back_in_few_tokens(algorithm, texts, tmp_path):
    size = 400 if algorithm == "byte_bpe" else 100
    told = []
    manifest = train(texts, tmp_path / "out", VocabularySettings(algorithm, size), told.append)
    loaded = tokenizers.load_tokenizer("JsonTokenizer", str(tmp_path / "out/tokenizer.json"))
    assert loaded.vocab_size == manifest["vocab_size"] <= size
    special = [loaded.token_id(token) for token in vocabulary.SPECIAL_TOKENS[algorithm]]
    assert special == list(range(len(special)))
    for line in ("the white wheel barrow", "neben den weißen Hühnern"):
        ids = loaded.encode(line)
        assert loaded.decode(ids) == line and len(ids) < len(line) and max(special) < min(ids)
    assert manifest["counts"]["lines"] == 60
    assert sum(told) == len((ENGLISH + GERMAN).encode())
    for entry in manifest["files"]:
        assert records.sha256_of(tmp_path / "out" / entry["file"]) == entry["sha256"]
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_files_of_gpt2_and_bert_hold_the_same_vocabulary_as_the_json(texts, tmp_path):
    train(texts, tmp_path / "b", VocabularySettings("byte_bpe", 400))
    files = [str(tmp_path / "b" / name) for name in ("vocab.json", "merges.txt", "tokenizer.json")]
    gpt2 = tokenizers.load_tokenizer("GPT2Tokenizer", *files[:2])
    both = tokenizers.load_tokenizer("JsonTokenizer", files[2])
    assert isinstance(both, tokenizers.ByteLevelTokenizer) and gpt2.eos_id == both.eos_id == 0
    assert gpt2.encode(ENGLISH + GERMAN).tolist() == both.encode(ENGLISH + GERMAN).tolist()
    train(texts, tmp_path / "w", VocabularySettings("wordpiece", 100))
    bert = tokenizers.load_tokenizer(
        "BertTokenizer", str(tmp_path / "w" / "vocab.txt"), do_lower_case=False
    )
    both = tokenizers.load_tokenizer("JsonTokenizer", str(tmp_path / "w" / "tokenizer.json"))
    assert bert.encode(GERMAN).tolist() == both.encode(GERMAN).tolist()


def test_lower_case_wordpieces_have_no_capitals_and_no_accents(texts, tmp_path):
    train(texts, tmp_path / "w", VocabularySettings("wordpiece", 100, do_lower_case=True))
    lines = (tmp_path / "w" / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert lines[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert not [line for line in lines[5:] if line != line.lower() or "ü" in line]


def test_rare_pairs_are_not_joined(tmp_path):
    (tmp_path / "a.txt").write_text("common common common common\nunique\n")
    settings = VocabularySettings("bpe", 60, min_frequency=3)
    train([str(tmp_path / "a.txt")], tmp_path / "out", settings)
    tokens = json.loads((tmp_path / "out/tokenizer.json").read_text())["model"]["vocab"]
    assert "▁common" in tokens and "un" not in tokens


def test_finished_vocabulary_is_kept_and_another_one_refused(texts, tmp_path):
    first = train(texts, tmp_path / "out", VocabularySettings("bpe", 80))
    told = []
    assert train(texts, tmp_path / "out", VocabularySettings("bpe", 80), told.append) == first
    assert told == []
    with pytest.raises(ConfigError, match="made with another vocab_size"):
        train(texts, tmp_path / "out", VocabularySettings("bpe", 81))


def test_a_folder_that_another_preparation_writes_to_is_refused(texts, tmp_path):
    settings = VocabularySettings("bpe", 80)
    with (
        records.in_use(tmp_path / "out"),
        pytest.raises(ConfigError, match="must not be in use by another preparation"),
    ):
        train(texts, tmp_path / "out", settings)
    assert not list((tmp_path / "out").iterdir())
    train(texts, tmp_path / "out", settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (VocabularySettings("spam", 100), "must be one of byte_bpe, .*Received: 'spam'"),
        (VocabularySettings("byte_bpe", 256), "vocab_size: must be at least 257.*bytes"),
        (VocabularySettings("byte_bpe", 600, limit_alphabet=3), "limit_alphabet: .* byte_bpe"),
        (VocabularySettings("unigram", 60, min_frequency=3), "min_frequency: .*Received: unigram"),
        (
            VocabularySettings("bpe", 9),
            "vocab_size: must be at least .* for this text, .* 9. Raise",
        ),
        (VocabularySettings("bpe", 9, special_tokens=("<s>",)), "hold <unk>. Received: <s>"),
        (VocabularySettings("byte_bpe", 300, special_tokens=("a", "a")), "differ from one anoth"),
        (VocabularySettings("bpe", 100, do_lower_case=True), "do_lower_case: .*wordpiece"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(texts, tmp_path, settings, words):
    with pytest.raises(ConfigError, match=words):
        train(texts, tmp_path / "out", settings)


def test_fewer_tokens_than_characters_are_refused(texts, tmp_path):
    with pytest.raises(ConfigError, match="must be larger than the number of char.*Received: 9"):
        train(texts, tmp_path / "v", VocabularySettings("unigram", 9))


def test_text_without_a_line_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text(" \n\n")
    with pytest.raises(DataError, match="must hold text. Received: no line"):
        train([str(tmp_path / "a.txt")], tmp_path / "out", VocabularySettings("bpe", 80))
