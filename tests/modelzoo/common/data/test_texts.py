"""Text files, prompts and tokens a byte."""

from __future__ import annotations

import csv
import functools
import gzip
import json
import os
import time
import types
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.config.base_params import inherit_inputs
from modelzoo.common.config.input_sections import GptTextDataInput
from modelzoo.common.data import text_files, token_cache
from modelzoo.common.data.prompts import read_prompts, section_tokenizer
from modelzoo.common.data.text_files import END_OF_DOCUMENT, Windows, find_text_files, split_files
from modelzoo.common.files.split_names import refuse_splits
from modelzoo.common.tokenizers.tokenizers import ByteTokenizer
from modelzoo.common.train.language_model import tokens_per_byte
from tests.messages import names, raises


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    for index in range(40):
        (tmp_path / "sub" / f"{index}.txt").write_text(f"text {index}")
    (tmp_path / "other.bin").write_bytes(b"\0")
    return tmp_path


def keys(data_dir=None, **given):
    """An input section of text."""
    given = {"max_sequence_length": 5, "batch_size": 2, "eval_fraction": 0.0, **given}
    path = None if data_dir is None else str(data_dir)
    return GptTextDataInput(data_processor="GptTextDataProcessor", data_dir=path, **given)


def tokens_of(training=False, **given):
    return text_files.read_text(keys(**given), training).tokens


def test_folder_is_walked_for_the_patterns(folder):
    files = text_files.find_text_files(str(folder), ["*.txt"])
    assert len(files) == 40 and files == sorted(files)
    assert ("sub/0.txt", str(folder / "sub" / "0.txt")) in files


def test_names_in_any_case_and_links_are_read_and_others_are_logged(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(text_files, "_log_once", lines.append)
    for name in ("data/B.TXT", "data/d.json", "data/.hidden/c.txt", "other/e.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a\n")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "other")
    (tmp_path / "data" / "loop").symlink_to(tmp_path / "data")
    found = text_files.find_text_files(str(tmp_path / "data"), text_files.TEXT_PATTERNS)
    assert [name for name, _ in found] == ["B.TXT", "link/e.txt"]
    assert len(lines) == 1 and names(lines[0], "1 of 3", "d.json")
    (tmp_path / "data" / "f.jsonl").write_text("{}\n")
    with raises(DataError, "2 files of text", "B.TXT", "1 of rows", "f.jsonl", "file_patterns"):
        text_files.find_text_files(str(tmp_path / "data"), text_files.TEXT_PATTERNS)


def test_glob_and_file_are_sources_too(folder):
    assert len(text_files.find_text_files(str(folder / "sub" / "1*.txt"), [])) == 11
    assert text_files.find_text_files([str(folder / "other.bin")], []) == [
        ("other.bin", str(folder / "other.bin"))
    ]


def test_text_of_the_package_is_the_default_and_the_same_everywhere():
    files = text_files.find_text_files(None, ["*.py"])
    assert [name for name, _ in files] == [f"{number:02d}.txt" for number in range(40)]
    tokens = tokens_of()
    assert zlib.crc32(tokens.astype("<u2").tobytes()) == 406670193
    kept = text_files.split_files(files, 0.05, training=False)
    assert [name for name, _ in kept] == ["11.txt", "20.txt", "23.txt"]


def test_missing_source_and_empty_folder_are_named(tmp_path):
    with raises(DataError, "nowhere"):
        text_files.find_text_files(str(tmp_path / "nowhere"), ["*.txt"])
    with raises(DataError, "*.txt"):
        text_files.find_text_files(str(tmp_path), ["*.txt"])


def test_splits_are_disjoint_complete_and_independent_of_other_files(folder):
    files = text_files.find_text_files(str(folder), ["*.txt"])
    train = text_files.split_files(files, 0.3, training=True)
    evaluation = text_files.split_files(files, 0.3, training=False)
    assert sorted(train + evaluation) == files and evaluation
    assert text_files.split_files(files[:20], 0.3, True) == [f for f in train if f in files[:20]]


def test_no_fraction_means_no_split(folder):
    files = text_files.find_text_files(str(folder), ["*.txt"])
    assert text_files.split_files(files, 0.0, training=False) == files


def test_tokens_are_bytes_with_an_end_after_each_file(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_bytes("é\n".encode())
    assert tokens_of(data_dir=tmp_path).tolist() == [0xC3, 0xA9, 10, END_OF_DOCUMENT] * 2


def test_a_single_file_is_split_by_position(tmp_path):
    (tmp_path / "a.txt").write_text("0123456789" * 10)
    whole = tokens_of(data_dir=tmp_path / "a.txt")
    parts = [tokens_of(t, data_dir=tmp_path / "a.txt", eval_fraction=0.25) for t in (True, False)]
    assert np.concatenate(parts).tolist() == whole.tolist()
    assert len(parts[1]) == len(whole) // 4


ROWS = [{"text": "one\u2028two", "id": 1}, {"text": "three\n", "id": 2}, {"text": "é", "id": 3}]


def write_rows(path, text_key="text"):
    """Writes ROWS in the form of a file's name."""
    rows = [{text_key: row["text"], "id": row["id"]} for row in ROWS]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.Table.from_pylist(rows)
        if path.suffix == ".parquet":
            pytest.importorskip("pyarrow.parquet").write_table(table, path)
            return
        with pyarrow.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table)
        described = {"_data_files": [{"filename": path.name}]}
        (path.parent / "state.json").write_text(json.dumps(described))
        (path.parent / "cache-1.arrow").write_bytes(b"of another program")


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet", ".arrow"])
def test_a_row_is_a_document(tmp_path, suffix):
    write_rows(tmp_path / f"a{suffix}")
    ends = [[*row["text"].encode(), END_OF_DOCUMENT] for row in ROWS]
    assert tokens_of(data_dir=tmp_path).tolist() == sum(ends, [])
    write_rows(tmp_path / f"a{suffix}", text_key="content")
    assert tokens_of(data_dir=tmp_path, text_key="content").tolist() == sum(ends, [])
    with raises(DataError, f"a{suffix}", "'text'", "content"):
        tokens_of(data_dir=tmp_path)


@pytest.mark.parametrize(
    "content", [b"\xef", "caf\u00e9".encode("latin-1") * 9, bytes(range(128, 256))]
)
def test_what_is_no_utf8_is_refused(content, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"text\n" + content)
    with raises(DataError, "a.txt:2", "UTF-8"):
        tokens_of(data_dir=tmp_path)


def test_a_table_without_rows_has_no_tokens(tmp_path):
    (tmp_path / "a.csv").write_text("text,id\n")
    assert tokens_of(data_dir=tmp_path).size == 0


def test_rows_and_other_forms_are_no_text(tmp_path):
    (tmp_path / "rows").write_text('{"text": "a"}\n')
    with raises(DataError, "rows", "JSON"):
        tokens_of(data_dir=tmp_path / "rows")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"c"))
    assert tokens_of(data_dir=tmp_path / "c.txt.gz").tolist() == [99, END_OF_DOCUMENT]
    (tmp_path / "d.txt").write_bytes(gzip.compress(b"d"))
    with raises(DataError, "d.txt", "first bytes"):
        tokens_of(data_dir=tmp_path / "d.txt")
    (tmp_path / "c.txt.bz2").write_bytes(b"BZh9")
    with raises(DataError, "c.txt.bz2", "Unpack"):
        tokens_of(data_dir=tmp_path / "c.txt.bz2")


def test_of_several_data_sets_one_is_for_evaluation(tmp_path):
    for name, text in {"train": "to be " * 4, "test": "or not"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(text)
    facts = tmp_path / "dataset_dict.json"
    facts.write_text('{"splits": ["train", "test"]}')
    sizes = [len(tokens_of(t, data_dir=tmp_path, eval_fraction=0.2)) for t in (True, False)]
    assert sizes == [25, 7]
    facts.write_text('{"splits": ["train"]}')
    sizes = [len(tokens_of(t, data_dir=tmp_path, eval_fraction=0.2)) for t in (True, False)]
    assert sizes == [20, 5]
    facts.write_text('{"splits": ["all"]}')
    with raises(DataError, tmp_path, "'train'", "all"):
        tokens_of(data_dir=tmp_path)


NAMED = {
    "data/train-00000-of-00002.txt": "ab",
    "data/train-00001-of-00002.txt": "cd",
    "data/test-00000-of-00001.txt": "e",
}


@pytest.mark.parametrize(
    ("others", "sizes", "line"),
    [
        ({}, [6, 2], ("2 files", "1 for evaluation (test)")),
        ({"a.dev.txt": "xyz"}, [6, 4], ("validation", "1 file of test not read")),
        ({"valid/0000.txt": "xyz"}, [6, 4], ("validation",)),
        ({"test.py": "", "other.txt": "f"}, [11, 0], ("train-00000", "other.txt", "ignored")),
    ],
)
def test_names_of_files_are_splits(tmp_path, monkeypatch, others, sizes, line):
    lines = []
    monkeypatch.setattr(text_files, "_log_once", lines.append)
    for name, text in {**NAMED, **others}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    given = {"data_dir": tmp_path, "eval_fraction": 0.01}
    assert [len(tokens_of(training, **given)) for training in (True, False)] == sizes
    assert names(lines[0], *line)
    with raises(DataError, "train-", "--input_dir"):
        refuse_splits(str(tmp_path), tmp_path.rglob("*.txt"), "--input_dir")


@pytest.mark.parametrize("given", [["a.txt", "a.txt"], ["a.txt", "."], ["a.txt", "link.txt"]])
def test_a_file_is_read_once(tmp_path, given):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "link.txt").symlink_to("a.txt")
    with raises(DataError, "a.txt", "once"):
        find_text_files([str(tmp_path / name) for name in given], ["a.txt"])


def test_rows_are_read_next_to_a_readme_and_files_of_no_text_are_named(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    with raises(DataError, "*.jsonl", "1 other file", "a.json"):
        tokens_of(data_dir=tmp_path, file_patterns=text_files.TEXT_PATTERNS)
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    assert len(tokens_of(data_dir=tmp_path)) == 2


def make_tokenizer(folder):
    """Writes a tokenizer of three words."""
    library = pytest.importorskip("tokenizers")
    words = {"<|endoftext|>": 0, "to": 1, "be": 2, "or": 3}
    tokenizer = library.Tokenizer(library.models.WordLevel(words, unk_token="or"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("limit", [1 << 28, 0], ids=["memory", "file"])
def test_a_tokenizer_makes_the_tokens_in_memory_or_in_a_file(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(text_files, "MAX_MEMORY_BYTES", limit)
    made, cache = make_tokenizer(tmp_path / "model"), tmp_path / "cache"
    (tmp_path / "a.jsonl").write_text('{"text": "to be or"}\n{"text": ""}\n{"text": "be"}\n')
    given = {"data_dir": tmp_path / "a.jsonl", "vocab_size": 300, "cache_dir": str(cache)}
    for path in (made, made / "tokenizer.json", made):  # the file is written once
        found = text_files.read_text(keys(**given, tokenizer=str(path)), False)
        assert found.tokens.tolist() == [1, 2, 3, 0, 2, 0]
        assert found.text_bytes == len("to be orbe")
        assert isinstance(found.tokens, np.memmap) == (not limit)
    assert len(list(cache.glob("*"))) == (0 if limit else 1)
    with raises(ConfigError, "tokenizer", tmp_path / "nowhere"):
        tokens_of(**given, tokenizer=str(tmp_path / "nowhere"))
    (tmp_path / "a.jsonl").write_text('{"text": "or"}\n')
    assert tokens_of(**given, tokenizer=str(made)).tolist() == [3, 0]


@pytest.mark.parametrize("damage", [lambda data: data[:-2], lambda data: data[:-1] + b"x"])
def test_a_damaged_file_of_tokens_is_made_again(tmp_path, caplog, damage):
    path, dtype = tmp_path / f"{'0' * 32}.tokens", np.dtype("<u2")

    def read():
        return token_cache.open_tokens(path, iter([(np.array([1, 2]), 3)]), dtype)

    read()
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level("WARNING"):
        tokens, text_bytes, crc = read()
    assert tokens.tolist() == [1, 2] and text_bytes == 3
    assert names(caplog.text, path, "damaged")
    caplog.clear()
    read()
    assert not caplog.text


def test_the_cache_of_tokens_keeps_what_was_used_last(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(token_cache, "MAX_BYTES", 60)
    folder, dtype, now = token_cache.default_folder(), np.dtype("<i4"), time.time()

    def read(name):
        return token_cache.open_tokens(
            folder / f"{name * 32}.tokens", iter([(np.array([ord(name)]), 1)]), dtype
        )[0]

    opened = [read(name) for name in "abc"]
    (folder / "notes.txt").write_bytes(bytes(20))
    (folder / f".{'d' * 32}.tokens.1").write_bytes(bytes(20))  # of a process that was killed
    for age, path in enumerate([folder / f"{name * 32}.tokens" for name in "bca"]):
        os.utime(path, (now, now - 1000 + age))
    monkeypatch.setattr(token_cache, "MAX_BYTES", 40)
    read("b")  # is now the newest
    read("e")
    assert [tokens.tolist() for tokens in opened] == [[ord(name)] for name in "abc"]
    assert {path.name[0] for path in folder.iterdir()} == {"b", "e", "n"}


def test_tokenizers_of_one_vocabulary_have_files_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "MAX_MEMORY_BYTES", 0)
    made = make_tokenizer(tmp_path / "model")
    (tmp_path / "a.txt").write_text("To be")
    given = {"data_dir": tmp_path / "a.txt", "vocab_size": 300, "cache_dir": str(tmp_path / "c")}
    assert tokens_of(**given, tokenizer=str(made)).tolist() == [3, 2, 0]
    (made / "tokenizer.json").write_text(
        (made / "tokenizer.json")
        .read_text()
        .replace('"normalizer": null', '"normalizer": {"type": "Lowercase"}')
    )
    text_files._read_text.cache_clear()
    assert tokens_of(**given, tokenizer=str(made)).tolist() == [1, 2, 0]


def test_text_that_is_read_in_blocks_has_the_tokens_of_the_whole(tmp_path, monkeypatch):
    library = pytest.importorskip("tokenizers")
    text = "To be, or not to be:\n  that is the quéstion … " * 40
    made = library.ByteLevelBPETokenizer()
    made.train_from_iterator([text], vocab_size=300, special_tokens=["<|endoftext|>"])
    (tmp_path / "model").mkdir()
    made.save_model(str(tmp_path / "model"))
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    given = {"data_dir": tmp_path / "a.txt", "vocab_size": 300, "tokenizer": f"{tmp_path}/model"}
    whole = tokens_of(**given)
    assert whole.tolist() == [*made.encode(text).ids, 0]
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 13)
    monkeypatch.setattr(text_files, "PIECE_CHARACTERS", 7)
    text_files._read_text.cache_clear()
    assert tokens_of(**given).tolist() == whole.tolist()
    (tmp_path / "a.txt").write_bytes(text.encode() + b"\n\xff")
    with raises(DataError, "a.txt:42", "0xff"):
        tokens_of(**given)


def test_evaluation_reads_the_text_of_training_or_its_own():
    def sections(train, evaluation):
        text = {"data_processor": "GptTextDataProcessor"}
        given = {"train_input": {**text, **train}, "eval_input": {**text, **evaluation}}
        tree = inherit_inputs(given, ("eval_fraction",), False)
        return tree["eval_input"]["data_dir"], tree["train_input"].get("eval_fraction")

    assert sections({"data_dir": "a"}, {}) == ("a", None)
    assert sections({"data_dir": "a"}, {"data_dir": None}) == ("a", None)
    assert sections({"data_dir": "a"}, {"data_dir": ["b"]}) == (["b"], 0.0)
    assert sections({"data_dir": ["a", "b"]}, {"data_dir": "b"}) == ("b", None)
    assert sections({"data_dir": "a", "eval_fraction": 0.5}, {"data_dir": "b"}) == ("b", 0.5)


def test_windows_cover_each_epoch_once_and_differ_between_epochs():
    tokens = np.arange(101)
    windows = Windows(tokens, length=5, batch_size=4, seed=1)
    epochs = [
        np.concatenate([windows.batch(e * windows.batches_per_epoch + i) for i in range(5)])
        for e in range(2)
    ]
    for epoch in epochs:
        assert sorted(epoch[:, 0]) == list(range(0, 100, 5))
        assert (np.diff(epoch, axis=1) == 1).all()
    assert (epochs[0] != epochs[1]).any()


def test_batch_is_a_function_of_seed_and_number_only():
    tokens = np.arange(1000)
    first, second = (Windows(tokens, 5, 4, seed=3) for _ in range(2))
    later = [first.batch(i) for i in range(120)]
    np.testing.assert_array_equal(later[110], second.batch(110))
    assert (Windows(tokens, 5, 4, seed=4).batch(0) != later[0]).any()


def test_windows_without_seed_follow_the_text():
    batch = Windows(np.arange(21), 5, 2, None).batch(1)
    assert batch[:, 0].tolist() == [10, 15] and batch.dtype == np.int32


def test_the_last_partial_batch_is_kept_on_request():
    tokens = np.arange(5 * 6 + 1)
    assert Windows(tokens, 5, 4, None).batches_per_epoch == 1
    windows = Windows(tokens, 5, 4, None, keep_remainder=True)
    assert windows.batches_per_epoch == 2
    assert windows.batch(1)[:, 0].tolist() == [20, 25]


def test_too_little_text_is_refused():
    with raises(DataError, "21 tokens"):
        Windows(np.arange(20), 5, 4, None)


def read(path, text, limit=20):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_prompts(str(path), ByteTokenizer(), 257, limit)


def test_a_text_file_holds_one_prompt_a_line(tmp_path):
    prompts = read(tmp_path / "a.txt", "one \ntwo\r\n")
    assert [(p.text, bytes(p.tokens.tolist())) for p in prompts] == [
        ("one ", b"one "),
        ("two", b"two"),
    ]
    assert prompts[1].where == f"{tmp_path}/a.txt:2"


@pytest.mark.parametrize("blank", ["", "  ", "\t"])
def test_a_blank_line_is_refused_in_text_and_left_out_of_json_lines(tmp_path, blank):
    with raises(DataError, "a.txt:2", repr(blank)):
        read(tmp_path / "a.txt", f"one\n{blank}\ntwo\n")
    assert len(read(tmp_path / "a.jsonl", '{"prompt": "one"}\n  \n{"prompt": "  "}\n')) == 2


def test_jsonl_holds_texts_or_tokens_and_keeps_other_keys(tmp_path):
    rows = [{"prompt": "ab", "id": 7}, {"text": "c\nd"}, {"prompt_tokens": [104, 105]}]
    prompts = read(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert [prompt.text for prompt in prompts] == ["ab", "c\nd", "hi"]
    assert prompts[0].others == {"id": 7}
    assert prompts[2].tokens.tolist() == [104, 105]


@pytest.mark.parametrize(
    "line, facts",
    [
        *((line, ("must be JSON",)) for line in ("{", "[" * 5000)),
        ('{"prompt": 3}', ("prompt", "Received: 3")),
        ('{"question": "a"}', ("prompt", "question")),
        (r'{"prompt": "\ud800"}', ("Unicode", r"'\ud800'")),
        (r'{"prompt": "a", "\ud800": 1}', ("Unicode", r"'\ud800'")),
        ('{"prompt": ""}', ("prompt", "one token")),
        ('{"text": "a", "prompt_tokens": [1]}', ("text", "prompt_tokens")),
        ('{"prompt": "a", "reference": 3}', ("reference", 3)),
        ('{"prompt": "a", "sample": 1, "tokens": 2}', ("Received: sample, tokens",)),
        ('{"prompt_tokens": ["a"]}', ("prompt_tokens", "'a'")),
        ('{"prompt_tokens": [1' + 23 * "0" + "]}", ("prompt_tokens", 2147483648)),
        ('{"prompt_tokens": [257]}', ("0 to 256", 257)),
        ('{"prompt": "a", "s": [1, {"t": NaN}]}', ("s", "nan")),
        ('{"prompt": "12345678901234567890"}', (20,)),
        (b'{"prompt": "\xff"}', ("UTF-8",)),
    ],
)
def test_mistakes_are_reported_with_file_and_line(tmp_path, line, facts):
    first = b'{"prompt": "fine"}\n'
    with raises(DataError, "a.jsonl:2: ", *facts):
        read(tmp_path / "a.jsonl", first + (line if isinstance(line, bytes) else line.encode()))


def test_a_vocabulary_larger_than_the_models_is_refused():
    section = SimpleNamespace(
        tokenizer_type="ByteTokenizer", vocab_file=None, encoder_file=None, eos_id=None
    )
    assert section_tokenizer(section, 257).vocab_size == 257
    for eos_id, vocab_size in ((None, 256), (257, 257)):
        section.eos_id = eos_id
        with raises(ConfigError, "eos_id" if eos_id else "tokenizer_type", 256):
            section_tokenizer(section, vocab_size)


of = functools.partial(tokens_per_byte, training=False)


def section(data_dir, processor="GptTfRecordsProcessor", vocab_size=50257):
    return types.SimpleNamespace(data_processor=processor, data_dir=data_dir, vocab_size=vocab_size)


def test_of_text_that_is_read_as_bytes_ends_of_files_count_as_tokens(tmp_path):
    for name in "abcdefgh":
        (tmp_path / f"{name}.txt").write_text("x" * 9)
    assert of(keys(tmp_path)) == 10 / 9
    (tmp_path / "long.txt").write_text("x" * 928)
    assert of(keys(tmp_path)) == 1009 / 1000
    for training in (True, False):  # long.txt is in one of them
        files = split_files(find_text_files(str(tmp_path), ["*.txt"]), 0.5, training)
        size = sum(os.path.getsize(path) for _, path in files)
        assert (
            of(keys(tmp_path, eval_fraction=0.5), training=training) == (size + len(files)) / size
        )
    assert of(keys(tmp_path / "absent")) is None


def test_tokens_per_byte_come_from_the_manifest(tmp_path):
    def folder(name, settings=None, **counts):
        made = tmp_path / name
        made.mkdir()
        described = {"settings": settings or {}, "counts": counts}
        (made / "manifest.json").write_text(json.dumps(described))
        return str(made)

    pile = folder("pile_gpt2", tokens=30, text_bytes=100)
    other = folder("other", tokens=10, text_bytes=100)
    assert of(section(pile)) == 0.3
    assert of(section([pile, other])) == 0.2
    made = folder("bytes", {"tokenizer_type": "ByteTokenizer"}, tokens=102, text_bytes=100)
    assert of(section(made)) == 1.02
    assert of(section(folder("pile_articles", articles=3))) is None
    assert of(section(str(tmp_path / "without"))) is None
    assert of(None) is None
