"""Tokenizers against their library and Hugging Face; damaged files are refused."""

from __future__ import annotations

import json
import re
import string
from pathlib import Path

import numpy as np
import pytest

library = pytest.importorskip("tokenizers")
pytest.importorskip("tokenizers")

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.data.preparation.vocabulary import SPECIAL_TOKENS
from modelzoo.common.tokenizers import tokenizers
from modelzoo.common.tokenizers.tokenizers import line_tokens, require_tokens_differ, word_pieces
from tests.messages import raises

REAL = Path(__file__).resolve().parents[5] / "shared" / "data"
ODD = (
    "a\x1cb !\x1c c\u2028d  e\n\n f\t g\u0085h \u00a0i \u3000 j's don't 12\n34 \u00e9moji, "
    '\U0001f600\U0001f600 x.y;z \u4e2d\u6587 \ud55c\uad6d a, b. (c) "d" e\u0301 f\x00g\r\n '
    " y=\u0338   "
)
PLAIN = "the cat's mat, and\nthe end. It was (so it seemed) unbelievable: a cat sat!\n\n  " * 3
WORDPIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "un", "##believ"]
WORDPIECES += ["##able", "##s", "sat", ",", "'", "Cat", "s"]


@pytest.fixture(scope="module")
def gpt2_files(tmp_path_factory):
    """Trains a small byte pair encoding and writes it as the two files of GPT-2 and as one."""
    folder = tmp_path_factory.mktemp("gpt2")
    trained = library.ByteLevelBPETokenizer()
    trained.train_from_iterator(
        [PLAIN] * 3, 330, 2, special_tokens=["<|endoftext|>", "<|padding|>"], show_progress=False
    )
    trained.save_model(str(folder))
    trained.save(str(folder / "tokenizer.json"))
    return folder, trained


@pytest.fixture
def vocab(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WORDPIECES) + "\n")
    return str(path)


def test_text_that_a_vocabulary_has_no_tokens_for_is_refused(gpt2_files, tmp_path, vocab):
    folder, _ = gpt2_files
    whole = json.loads((folder / "vocab.json").read_text())
    few = {token: number for token, number in whole.items() if token != "x"}
    (tmp_path / "vocab.json").write_text(json.dumps(few))
    files = str(tmp_path / "vocab.json"), str(folder / "merges.txt")
    loaded = tokenizers.load_tokenizer("GPT2Tokenizer", *files)
    assert loaded.decode(loaded.encode(PLAIN)) == PLAIN
    with raises(ConfigError, "'ox'", "1 of the 256"):
        loaded.encode("an ox")
    words = tokenizers.load_tokenizer("BertTokenizer", vocab)
    words.encode_batch(["the cat zz"] * 333 + ["the"])  # a third of 1,000 is unknown
    words.encode_batch(["zz zz zz"] * 999)
    words = tokenizers.load_tokenizer("BertTokenizer", vocab)
    with raises(ConfigError, "vocab.txt", 800, 1000):
        words.encode_batch(["zz zz cat zz zz"] * 200)


@pytest.mark.parametrize("text", [PLAIN, ODD, "", " ", "x"])
def test_gpt2_and_neox_files_give_the_tokens_of_their_library(gpt2_files, text):
    folder, trained = gpt2_files
    files = str(folder / "vocab.json"), str(folder / "merges.txt")
    kinds = [("GPT2Tokenizer", *files), ("GPT2Tokenizer", *reversed(files))]
    for arguments in [*kinds, ("NeoXTokenizer", str(folder / "tokenizer.json"))]:
        loaded = tokenizers.load_tokenizer(*arguments)
        assert isinstance(loaded, tokenizers.ByteLevelTokenizer)
        ids = loaded.encode(text)
        assert ids.dtype == np.int32 and ids.tolist() == trained.encode(text).ids
        assert loaded.decode(ids) == text
        assert (loaded.eos_id, loaded.pad_id, loaded.vocab_size) == (0, 1, trained.get_vocab_size())
        assert loaded.decode([0, *ids, 1, 0, 5000]) == text


def test_random_text_has_the_tokens_of_the_library(gpt2_files):
    folder, trained = gpt2_files
    loaded = tokenizers.load_tokenizer("NeoXTokenizer", str(folder / "tokenizer.json"))
    letters = np.array(list("aé,.'\"!?:;)( \n\t1=s \x1c\u00a0\u0301中"))
    for seed in range(300):
        text = "".join(np.random.default_rng(seed).choice(letters, 60))
        assert loaded.encode(text).tolist() == trained.encode(text).ids, repr(text)


def test_long_document_is_cut_only_before_words():
    text = "alpha beta  gamma\n\ndelta\nepsilon zeta " * 50
    pieces = tokenizers.split_text(text, limit=30)
    assert "".join(pieces) == text and len(pieces) > 20
    for before, after in zip(pieces, pieces[1:]):
        assert not before[-1].isspace() and after[0] in " \n" and not after[1].isspace()


def test_tokenizer_json_that_joins_words_is_not_cut(tmp_path):
    trained = library.Tokenizer(library.models.Unigram([("▁", -1.0), ("a", -2.0), ("a▁b", -3.0)]))
    trained.pre_tokenizer = library.pre_tokenizers.Metaspace(split=False)
    trained.save(str(tmp_path / "t.json"))
    loaded = tokenizers.load_tokenizer("JsonTokenizer", str(tmp_path / "t.json"))
    assert not isinstance(loaded, tokenizers.ByteLevelTokenizer)


def test_wordpieces_have_their_numbers_and_places(vocab):
    loaded = tokenizers.load_tokenizer("BertTokenizer", vocab)
    ids, offsets = loaded.encode_with_offsets("The cats, unbelievable")
    assert loaded.tokens(ids) == ["the", "cat", "##s", ",", "un", "##believ", "##able"]
    assert offsets.tolist() == [[0, 3], [4, 7], [7, 8], [8, 9], [10, 12], [12, 18], [18, 22]]
    assert loaded.decode([2, *ids, 3, 0]) == "the cats, unbelievable"
    special = [getattr(loaded, f"{name}_id") for name in ("pad", "unk", "cls", "sep", "mask")]
    assert special == [0, 1, 2, 3, 4] and loaded.eos_id is None


def test_cased_wordpieces_keep_capitals(vocab):
    loaded = tokenizers.load_tokenizer("BertTokenizer", vocab, do_lower_case=False)
    assert loaded.tokens(loaded.encode("Cat The")) == ["Cat", "[UNK]"]


def test_batches_have_the_tokens_of_single_texts(vocab, gpt2_files):
    texts = ["the cat", "", "sat"]
    for loaded in (
        tokenizers.load_tokenizer("BertTokenizer", vocab),
        tokenizers.load_tokenizer("NeoXTokenizer", str(gpt2_files[0] / "tokenizer.json")),
        tokenizers.load_tokenizer("ByteTokenizer"),
    ):
        batch = loaded.encode_batch(texts)
        assert [ids.tolist() for ids in batch] == [loaded.encode(t).tolist() for t in texts]


def test_facts_distinguish_vocabularies_however_files_write_them(tmp_path, vocab):
    loaded = tokenizers.load_tokenizer("BertTokenizer", vocab)
    lines = Path(vocab).read_text().splitlines()
    (tmp_path / "crlf.txt").write_bytes("\r\n".join(lines).encode())
    (tmp_path / "other.txt").write_text("\n".join([*lines[:-2], lines[-1], lines[-2]]))
    same, other = (
        tokenizers.load_tokenizer("BertTokenizer", str(tmp_path / name), do_lower_case=False).facts
        for name in ("crlf.txt", "other.txt")
    )
    assert loaded.facts == same and len(same["vocabulary_sha256"]) == 64
    assert same["vocab_size"] == other["vocab_size"] == loaded.vocab_size
    assert same["vocabulary_sha256"] != other["vocabulary_sha256"]
    assert tokenizers.ByteTokenizer().facts["vocab_size"] == 257


def test_bytes_are_tokens():
    loaded = tokenizers.ByteTokenizer()
    assert loaded.encode("é!").tolist() == [0xC3, 0xA9, 0x21]
    assert loaded.decode([0xC3, 0xA9, 256, 0x21, 0xC3]) == "é!\ufffd"
    assert loaded.token_id("<|endoftext|>") == loaded.eos_id == 256


@pytest.mark.parametrize(
    ("kind", "content", "facts"),
    [
        ("GPT2Tokenizer", None, ("GPT2Tokenizer", "no file")),
        ("GPT2Tokenizer", '{"a": 1}', ("GPT2Tokenizer", "/f")),
        ("NeoXTokenizer", None, ("NeoXTokenizer", "tokenizer.json")),
        ("NeoXTokenizer", "{oops", ("f:1", "column 2")),
        ("JsonTokenizer", '{"a": 1}', ("model", "vocab_file")),
        ("NeoXTokenizer", "[1]", ("list",)),
        ("JsonTokenizer", '{"model": {"type": "no"}}', ("tokenizer.json",)),
        ("BertTokenizer", None, ("BertTokenizer", "vocab.txt")),
        ("BertTokenizer", "a\nb\n", ("[UNK]", "'a'")),
        ("SpamTokenizer", None, ("tokenizer_type", "'SpamTokenizer'")),
        ("ByteTokenizer", "a", ("tokenizer_type", "/f", "ByteTokenizer")),
    ],
)
def test_wrong_file_is_refused_with_what_is_needed(tmp_path, kind, content, facts):
    path = tmp_path / "f"
    if content:
        path.write_text(content)
    with raises(ConfigError, *facts):
        tokenizers.load_tokenizer(kind, str(path) if content else None)


def test_merges_in_reversed_order_are_refused(gpt2_files, tmp_path):
    folder, _ = gpt2_files
    first, *lines = (folder / "merges.txt").read_text().splitlines()
    path = tmp_path / "merges.txt"
    path.write_text("\n".join([first, *lines[::-1]]))
    with pytest.raises(ConfigError, match=r"merges\.txt"):
        tokenizers.load_tokenizer("GPT2Tokenizer", str(path), str(folder / "vocab.json"))


@pytest.mark.parametrize("number", ["5", "4000000000", "-1", "1.5", "true", '"a"'])
def test_numbers_of_tokens_that_are_none_are_refused(gpt2_files, tmp_path, number):
    folder, _ = gpt2_files
    content = (folder / "vocab.json").read_text()
    path = tmp_path / "vocab.json"
    path.write_text(re.sub(r'("e"): ?\d+', rf"\1:{number}", content))
    assert path.read_text() != content
    with raises(ConfigError, "vocab.json", "'e'"):
        tokenizers.load_tokenizer("GPT2Tokenizer", str(path), str(folder / "merges.txt"))


@pytest.mark.parametrize("kind", sorted(tokenizers.ALGORITHMS))
def test_missing_file_is_named_with_the_command_that_makes_one(tmp_path, kind):
    algorithm = tokenizers.ALGORITHMS[kind]
    assert algorithm in SPECIAL_TOKENS
    with raises(DataError, "absent", f"cerebras-tf prepare vocab --algorithm {algorithm}"):
        tokenizers.load_tokenizer(kind, str(tmp_path / "absent"))


def test_missing_special_tokens_are_named(gpt2_files):
    loaded = tokenizers.load_tokenizer("NeoXTokenizer", str(gpt2_files[0] / "tokenizer.json"))
    tokenizers.require_tokens(loaded, "eos", "pad")
    with raises(ConfigError, "tokenizer.json", "[CLS], [SEP]"):
        tokenizers.require_tokens(loaded, "cls", "sep")


def real_texts():
    """Yields English, German and odd text."""
    if not REAL.is_dir():
        pytest.skip(f"needs the real data in {REAL.name} beside the checkout")
    yield (REAL / "wikitext-2/valid.txt").read_text("utf-8")
    yield (REAL / "multi30k/val.de").read_text("utf-8")
    yield (REAL / "ner/ncbi-disease/devel.tsv").read_text("utf-8")
    yield (REAL / "cnn_dm/train.jsonl").read_text("utf-8")
    yield ODD


@pytest.mark.slow
def test_gpt2_tokens_of_real_text_equal_those_of_hugging_face():
    transformers = pytest.importorskip("transformers")
    for text in real_texts():
        encoder, merges = str(REAL / "vocab/gpt2/encoder.json"), str(REAL / "vocab/gpt2/vocab.bpe")
        theirs = transformers.GPT2Tokenizer(vocab=encoder, merges=merges)
        ours = tokenizers.load_tokenizer("GPT2Tokenizer", merges, encoder)
        ids = ours.encode(text)
        assert ids.tolist() == theirs.encode(text) and ours.decode(ids) == text


@pytest.mark.parametrize(
    ("name", "files", "expected"),
    [
        (None, {}, ["e", "水"]),
        ("tokenizer_config.json", {"strip_accents": False}, ["é", "水"]),
        ("tokenizer.json", {"normalizer": {"strip_accents": False}}, ["é", "水"]),
        ("tokenizer_config.json", {"tokenize_chinese_chars": False}, ["e", "##水"]),
    ],
)
def test_text_of_a_bert_is_normalized_as_the_files_next_to_its_vocabulary_specify(
    tmp_path, name, files, expected
):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "e", "é", "水", "##水"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    if name is not None:
        (tmp_path / name).write_text(json.dumps(files))
    made = tokenizers.load_tokenizer("BertTokenizer", str(tmp_path / "vocab.txt"))
    assert made.tokens(made.encode("É水")) == expected


@pytest.mark.slow
@pytest.mark.parametrize("lower", [True, False])
def test_bert_tokens_of_real_text_equal_those_of_hugging_face(lower):
    transformers = pytest.importorskip("transformers")
    for text in real_texts():
        vocab = str(REAL / "vocab/bert-base-uncased/vocab.txt")
        theirs = transformers.BertTokenizer(vocab=vocab, do_lower_case=lower)
        ours = tokenizers.load_tokenizer("BertTokenizer", vocab, do_lower_case=lower)
        assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False)


GPT2_FILES = Path(__file__).resolve().parents[5] / "shared/data/vocab/gpt2"


def pairs_of_letters(folder, added_first=(), added_last=(), damage=list):
    """Writes all 2,704 pairs of 52 letters as a vocabulary and its merges, in their order."""
    letters = string.ascii_letters
    pairs = [f"{a} {b}" for a in letters for b in letters]
    tokens = [*added_first, *letters, *(pair.replace(" ", "") for pair in pairs), *added_last]
    numbers = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(numbers))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *damage(pairs)]))
    return numbers, (str(folder / "vocab.json"), str(folder / "merges.txt"))


@pytest.mark.parametrize(
    ("damage", "facts"),
    [
        (lambda lines: [], ("'aa'", 2704)),
        (lambda lines: lines[:1703], (1001,)),
        (lambda lines: lines[:-1], ("'ZZ'", "<name>")),
        (lambda lines: lines[1:], ("'aa'",)),
        (lambda lines: [*lines[:9], *lines[10:]], ("'aj'",)),
        (lambda lines: [*lines, lines[-1]], ("twice",)),
        *((lambda lines, more=more: [*lines, more], ()) for more in ("ab d", "a xyz", "a b c")),
    ],
)
def test_damaged_merges_are_refused(tmp_path, damage, facts):
    _, files = pairs_of_letters(tmp_path, damage=damage)
    with raises(ConfigError, "merges.txt", *facts):
        tokenizers.load_tokenizer("GPT2Tokenizer", *files)


def test_tokens_added_at_either_end_of_a_vocabulary_need_no_merges(tmp_path):
    first, last = ([f"{side}{n}" for n in range(1000)] for side in ("PAD", "EOS"))
    last[:3] = ["madeupword0000", "<aa>", "[aa]"]
    numbers, files = pairs_of_letters(tmp_path, first, last)
    loaded = tokenizers.load_tokenizer("GPT2Tokenizer", *files)
    assert loaded.encode("ab").tolist() == [numbers["ab"]]
    assert loaded.token_id("PAD0") == 0 and loaded.vocab_size == len(numbers)
    for ends in ((first, [*last, "aaaa"]), (["aaaa"], last)):
        _, files = pairs_of_letters(tmp_path, *ends)
        with raises(ConfigError, "merges.txt"):
            tokenizers.load_tokenizer("GPT2Tokenizer", *files)


@pytest.mark.slow
@pytest.mark.skipif(not GPT2_FILES.is_dir(), reason="needs the vocabulary of GPT-2")
def test_merges_of_gpt2_are_whole_and_refused_where_lines_are_cut_off(tmp_path):
    lines = (GPT2_FILES / "vocab.bpe").read_text("utf-8").splitlines()
    merges, encoder = tmp_path / "vocab.bpe", str(GPT2_FILES / "encoder.json")
    merges.write_text("\n".join(lines), "utf-8")
    assert tokenizers.load_tokenizer("GPT2Tokenizer", str(merges), encoder).vocab_size == 50257
    for count in (1, 10, 500):
        merges.write_text("\n".join(lines[:-count]), "utf-8")
        with raises(ConfigError, count):
            tokenizers.load_tokenizer("GPT2Tokenizer", str(merges), encoder)


def test_lines_of_a_vocab_txt_are_its_tokens():
    assert word_pieces("[PAD]\r\n\u2028\n\x85\n\n##a\n\n") == ["[PAD]", "\u2028", "\x85", "", "##a"]


@pytest.mark.parametrize("first", [[], ["<pad>", "<unk>", "<s>", "</s>"]])
def test_special_tokens_come_first_where_a_file_lacks_them(first):
    assert line_tokens([*first, "\u00a0", "\u3000 2"])[4:] == ["\u00a0", "\u3000"]
    found = line_tokens([*first, "cat 5", "", "dog"])
    assert found == ["<pad>", "<unk>", "<s>", "</s>", "cat", "dog"]


@pytest.mark.parametrize("kind", [str, str.encode])
def test_a_token_twice_is_named_with_its_lines(kind):
    tokens = [kind(token) for token in ("a", "b", "\u2028", "b")]
    require_tokens_differ("v.txt", tokens[:3])
    with raises(ConfigError, "v.txt", "'b'", "lines 2 and 4"):
        require_tokens_differ("v.txt", tokens)


def test_ids_far_above_the_number_of_tokens_are_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": {"type": "BPE", "vocab": {"a": 2147483648}, "merges": []}}')
    with raises(ConfigError, str(path), "2147483648 for 'a'"):
        tokenizers.load_tokenizer("JsonTokenizer", str(path))
