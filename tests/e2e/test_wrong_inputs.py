"""More than a hundred wrong inputs: each is one paragraph and exit code 2, before the first step.

wrong_params.py holds those of params files. They take minutes; test_bad_input.py and test_start.py
check the most likely ones every time.
"""

from __future__ import annotations

import gzip
import json
import shutil

import pytest

pytestmark = [pytest.mark.tf, pytest.mark.slow]
tf = pytest.importorskip("tensorflow")

import yaml

from modelzoo.commands.main import main
from tests.e2e.command_line import PARAMS, TEXT
from tests.e2e.wrong_params import CHANGES, GONE, TEXTS

RECORDS = {"data_processor": "GptTfRecordsProcessor", "data_dir": "rec", "vocab_size": 257}
RECORDS |= {"max_sequence_length": 16, "batch_size": 2}
GPT = ["prepare", "gpt", "--tokenizer_type", "ByteTokenizer", "--max_seq_length", "16"]
GPT += ["--processes", "1", "--input_dir"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "to", "be", "or", "not", "one", "."]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a right params file, text, a vocabulary, records, and a run of 10 steps."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "texts").mkdir()
    (folder / "empty").mkdir()
    (folder / "texts" / "a.txt").write_text(TEXT)
    (folder / "text.txt").write_text(TEXT * 20 + "\n")
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (folder / "ok.yaml").write_text(PARAMS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "-p", "ok.yaml", "-o", "trained"]) == 0
        assert main([*GPT, "text.txt", "--output_dir", "rec"]) == 0
    return folder


@pytest.fixture
def refused(made, tmp_path, monkeypatch, capsys):
    """Returns a function: a command must end with one paragraph that holds certain words."""
    folder = tmp_path / "folder"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)

    def check(argv, *words):
        assert main(list(argv)) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert "Traceback" not in told
        for word in words:
            assert word in told
        assert not list(folder.glob("out/model.ckpt-1*"))

    check.folder = folder
    return check


def changed(changes, text=PARAMS):
    """A params file with dotted keys changed."""
    tree = yaml.safe_load(text)
    for key, value in changes.items():
        *sections, last = key.split(".")
        part = tree
        for section in sections:
            part = part[section]
        if value is GONE:
            del part[last]
        else:
            part[last] = value
    return yaml.safe_dump(tree)


def name(value):
    return next(iter(value)) if isinstance(value, dict) else None


@pytest.mark.parametrize(("changes", "words"), CHANGES, ids=name)
def test_params_file_with_a_mistake(refused, changes, words):
    (refused.folder / "p.yaml").write_text(changed(changes))
    refused(["train", "-p", "p.yaml", "-o", "out"], words)


@pytest.mark.parametrize(("content", "words"), TEXTS)
def test_file_that_is_no_params_file(refused, content, words):
    (refused.folder / "p.yaml").write_bytes(content)
    refused(["train", "-p", "p.yaml", "-o", "out"], words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train", "-p"),
        ("train -p okay.yaml", "Did you mean ok.yaml?"),
        ("train -p .", "."),
        ("trian -p ok.yaml", "Did you mean train?"),
        ("train -p ok.yaml --max_step 3", "Did you mean --max_steps?"),
        ("train -p ok.yaml --max_steps many", "max_steps"),
        ("train -p ok.yaml --max_steps -3", "max_steps"),
        ("train -p ok.yaml -o out --device /gpu:0", "device: must be one that TensorFlow has"),
        ("train -p ok.yaml -o out --device /cpu:0 --cs_ip 1.2.3.4:9000", "device excludes cs_ip"),
        ("train -p ok.yaml -o out --device /cpu:0 --compile_only", "compile_only excludes device"),
        ("compile -p ok.yaml -o out --device /cpu:0", "compile_only excludes device"),
        ("train -p ok.yaml -o out --cs_ip nonsense", "cs_ip"),
        ("train -p ok.yaml --validate_only --compile_only", "validate_only"),
        ("train -p ok.yaml -o text.txt", "text.txt"),
        ("train -p ok.yaml -o /proc/nope/x", "/proc/nope"),
        ("train -p ok.yaml -o trained --max_steps 20 --checkpoint_path rec", "rec"),
        ("train -p ok.yaml -o out --resume_from nothing", "nothing"),
        ("eval -p ok.yaml -o trained --steps 3", "--eval_steps"),
        ("eval -p ok.yaml -o nothing_here", "nothing_here"),
        ("eval -p ok.yaml -o trained --checkpoint_path no/model.ckpt-3", "no/model.ckpt-3"),
        ("prepare gtp", "Did you mean gpt?"),
        ("prepare squad --input_file text.txt --vocab_file vocab.txt --output_dir o", "text.txt"),
        ("prepare ner --data_dir empty --vocab_file vocab.txt --output_dir o", "empty"),
        ("prepare glue --task cola2 --data_dir empty --vocab_file vocab.txt", "task"),
        ("prepare vocab --input_files text.txt --vocab_size 0 --output_dir o", "vocab_size"),
        ("prepare bert --input_dir text.txt --vocab_file vocab.txt --disable_masking", "mlm_only"),
        ("convert to_tf nope c", "nope"),
        ("convert to_tf empty c", "config.json"),
        ("convert from_tf nope c", "nope"),
        ("convert renumber trained c -5", "-5"),
        ("configs copy gpt3_tinny", "gpt3_tiny"),
        ("zero_shot -p ok.yaml -o trained --tasks nope", "nope"),
        ("bench --rounds 0", "rounds"),
        ("trainn", "Did you mean train?"),
        ("", "usage"),
    ],
)
def test_command_line_with_a_mistake(refused, line, words):
    refused(line.split(), words)


def cut(data):
    return data[:-5]


def flipped(data):
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("model.ckpt-10.data*", None),
        ("model.ckpt-10.index", lambda data: b""),
        ("model.ckpt-10.index", lambda data: bytes(range(256)) * 3),
        ("checkpoint", lambda data: b""),
        ("checkpoint", lambda data: b"\xff\x00 garbage"),
        ("data_position.json", lambda data: b"{"),
    ],
)
def test_checkpoint_that_is_damaged(refused, mode, pattern, damage):
    if mode == "eval" and pattern.endswith("json"):
        pytest.skip("evaluation does not read it")
    (path,) = (refused.folder / "trained").glob(pattern)
    data = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage(data))
    more = ["--max_steps", "12"] if mode == "train" else []
    refused([mode, "-p", "ok.yaml", "-o", "trained", *more], "trained/")


@pytest.mark.parametrize(
    ("changes", "damage", "words"),
    [
        ({}, cut, "rec: must hold the files of records"),
        ({}, flipped, "which is another file of as many bytes"),
        ({}, lambda data: b"", "rec"),
        ({}, lambda data: b"plain text, no records at all. " * 9, "rec: must hold the"),
        ({"train_input.max_sequence_length": 32}, None, "sequences of 16 where max_sequence_"),
        (
            {"train_input.vocab_size": 50257, "eval_input.vocab_size": 50257},
            None,
            "a vocabulary of 257 tokens where vocab_size",
        ),
        ({"train_input.batch_size": 10**6}, None, "must hold at least 1000000 records"),
        ({"train_input.data_dir": "nope"}, None, "nope"),
        ({"train_input.data_dir": "text.txt"}, None, "text.txt"),
        ({"train_input.data_dir": "empty"}, None, "empty"),
    ],
)
def test_records_that_do_not_fit(refused, changes, damage, words):
    tree = changed({"train_input": dict(RECORDS), "eval_input": dict(RECORDS)})
    (refused.folder / "p.yaml").write_text(changed(changes, tree))
    if damage is not None:
        (path,) = (refused.folder / "rec").glob("*.tfrecords")
        path.write_bytes(damage(path.read_bytes()))
    refused(["train", "-p", "p.yaml", "-o", "out"], words)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("nope.txt", None, "nope.txt"),
        ("b.jsonl", b'{"text": "a"}\n{"text": \n', "b.jsonl:2"),
        ("b.jsonl", b'{"txt": "a"}\n', "--text_key"),
        ("b.txt.gz", gzip.compress(b"hello " * 9999)[:-20], "b.txt.gz"),
        ("l.txt", b"abc \xff\xfe def\n" * 99, "l.txt"),
        ("e.txt", b"", "record"),
    ],
)
def test_text_that_cannot_be_prepared(refused, file, content, words):
    if content is not None:
        (refused.folder / file).write_bytes(content)
    refused([*GPT, file, "--output_dir", "o"], words)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--output_dir", "rec", "--max_seq_length", "8"], "max_seq_length"),
        (["--output_dir", "o", "--max_seq_length", "0"], "max_seq_length"),
        (["--output_dir", "o", "--overlap_size", "16"], "overlap_size"),
        (["--output_dir", "o", "--processes", "-4"], "processes"),
        (["--output_dir", "o", "--tokenizer_type", "ByteTokeniser"], "ByteTokenizer"),
        (["--output_dir", "o", "--tokenizer_type", "GPT2Tokenizer", "--vocab_file", "v"], "v"),
        (["--output_dir", "/dev/null/o"], "/dev/null"),
        (["--output_dir", "none"], "none/manifest.json"),
        (["--output_dir", "o", "--text_key", "body"], "--text_key: must come with files of JSON"),
    ],
)
def test_preparation_with_a_mistake(refused, more, words):
    (refused.folder / "none").mkdir()
    (refused.folder / "none" / "manifest.json").write_text("{oops")
    refused([*GPT, "text.txt", *more], words)


@pytest.mark.parametrize(
    ("config", "tensors", "words"),
    [
        ({"model_type": "t5"}, None, "no such file"),
        ({"model_type": "gpt2", "n_embd": 8}, b"x" * 100, "model.safetensors"),
    ],
)
def test_models_that_are_not_converted(refused, config, tensors, words):
    folder = refused.folder / "theirs"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        (folder / "model.safetensors").write_bytes(tensors)
    refused(["convert", "to_tf", "theirs", "c"], words if tensors else "theirs")
