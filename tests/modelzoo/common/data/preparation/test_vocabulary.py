"""Trained vocabularies give the text back; text is cleaned as asked."""

from __future__ import annotations

import pytest

pytest.importorskip("tokenizers")

from cerebras_tf.errors import ConfigError
from modelzoo.common.data.preparation import records, text_cleaning, vocabulary
from modelzoo.common.data.preparation.vocabulary import VocabularySettings, train
from modelzoo.common.tokenizers import tokenizers
from tests.messages import raises

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
    read = []
    manifest = train(texts, tmp_path / "out", VocabularySettings(algorithm, size), read.append)
    loaded = tokenizers.load_tokenizer("JsonTokenizer", str(tmp_path / "out/tokenizer.json"))
    assert loaded.vocab_size == manifest["vocab_size"] <= size
    special = [loaded.token_id(token) for token in vocabulary.SPECIAL_TOKENS[algorithm]]
    assert special == list(range(len(special)))
    for line in ("the white wheel barrow", "neben den weißen Hühnern"):
        ids = loaded.encode(line)
        assert loaded.decode(ids) == line and len(ids) < len(line) and max(special) < min(ids)
    assert manifest["counts"]["lines"] == 60
    assert sum(read) == len((ENGLISH + GERMAN).encode())
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


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        (VocabularySettings("spam", 100), ("byte_bpe", "'spam'")),
        (VocabularySettings("byte_bpe", 256), ("vocab_size", 257)),
        (VocabularySettings("byte_bpe", 600, limit_alphabet=3), ("limit_alphabet", "byte_bpe")),
        (VocabularySettings("unigram", 60, min_frequency=3), ("min_frequency", "unigram")),
        (VocabularySettings("bpe", 9), ("vocab_size", 9)),
        (VocabularySettings("bpe", 9, special_tokens=("<s>",)), ("<unk>", "<s>")),
        (VocabularySettings("byte_bpe", 300, special_tokens=("a", "a")), ("special_tokens",)),
        (VocabularySettings("bpe", 100, do_lower_case=True), ("wordpiece",)),
    ],
)
def test_settings_that_do_not_go_together_are_refused(texts, tmp_path, settings, facts):
    with raises(ConfigError, *facts):
        train(texts, tmp_path / "out", settings)


@pytest.mark.parametrize(
    ("split", "written"),
    [
        ("worth 1 @,@ 200 @.@ 50 , said", "worth 1,200.50, said"),
        ("a well @-@ known tale .", "a well-known tale."),
        (" \n = Valkyria Chronicles = \n \n Text .", "\n= Valkyria Chronicles =\n\nText."),
        ("it 's a dog ; they 're gone", "it's a dog; they're gone"),
        ("the soldiers ' song", "the soldiers' song"),
        ('he said " no way " and left', 'he said "no way" and left'),
        ("a game ( 2011 ) for play", "a game (2011) for play"),
        ("1914 – 18 and $ 5", "1914–18 and $5"),
        ("nothing to mend here", "nothing to mend here"),
    ],
)
def test_wikitext_reads_as_written(split, written):
    assert text_cleaning.detokenize_wikitext(split) == written


def test_text_stays_as_it_is_unless_asked_for():
    assert text_cleaning.clean("schÃ¶n , e\u0301") == "schÃ¶n , e\u0301"


def test_ftfy_mends_characters_and_brings_them_into_the_form():
    pytest.importorskip("ftfy")
    assert text_cleaning.clean("schÃ¶n e\u0301", "NFC") == "schön \u00e9"
    assert text_cleaning.clean("e\u0301", "none") == "e\u0301"
    assert text_cleaning.clean("\u00e9 , so", "NFD", wikitext=True) == "e\u0301, so"
