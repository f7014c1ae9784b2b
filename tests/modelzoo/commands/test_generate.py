"""`cerebras-tf generate` on a small model: prompts, sampling options and mistakes."""

from __future__ import annotations

import io
import json
import sys

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

import yaml

from cerebras_tf.errors import CerebrasError, ConfigError, DataError
from modelzoo.commands.main import run_command
from modelzoo.common.data.prompts import read_stdin, typed_lines
from modelzoo.common.tokenizers.tokenizers import ByteTokenizer
from tests.messages import raises
from tests.modelzoo.common.convert.models import write_model
from tests.modelzoo.language_models import POSITIONS, SmallModel, small_tree

GREEDY = ("--do_sample", "false", "--device", "/cpu:0")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    made = SmallModel("gpt3", folder)
    (folder / "params.yaml").write_text(yaml.safe_dump(small_tree("gpt3")))
    return made


@pytest.fixture
def call(model, capsys, monkeypatch):
    """Returns a function that runs the command on a model and returns what it prints."""

    def generate(*words, typed=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        run_command(["generate", "-o", model.params.runconfig.model_dir, *map(str, words)])
        return capsys.readouterr().out

    return generate


def likeliest(model, text, count):
    """The greedy completion, computed without a cache, from the last positions of the model."""
    tokens, ids = ByteTokenizer(), [*text.encode()]
    for _ in range(count):
        ids.append(int(model.full_logits([ids])[0, -1].argmax()))
    return tokens.decode(ids[len(text) :])


def test_prompts_come_from_options_files_and_standard_input(model, call, tmp_path):
    expected = {text: text + likeliest(model, text, 6) + "\n" for text in ("To be", "Or not")}
    both = "\n".join(expected.values())
    few = (*GREEDY, "--max_new_tokens", 6)
    assert call("--prompt", "To be", "--prompt", "Or not", *few) == both
    (tmp_path / "prompts.txt").write_text("To be\nOr not\n")
    assert call("--prompt_file", tmp_path / "prompts.txt", *few) == both
    assert call(*few, typed="To be\n") == expected["To be"]
    assert call("--interactive", *few, typed="To be\nOr not\n") == both
    with raises(DataError, "standard input", "--prompt"):
        call(*few, typed="\n")


@pytest.mark.parametrize("data", [b"\xef\xbb\xbfTo be\r\n", b"To be"])
def test_standard_input_is_utf8_text(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert read_stdin() == "To be"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xf6")))
    with raises(DataError, "standard input:1", "0xf6"):
        read_stdin()


def test_text_may_be_longer_than_the_positions_of_the_model(call):
    text = call("--prompt", "x" * 2 * POSITIONS, *GREEDY, "--max_new_tokens", 2 * POSITIONS)
    assert len(text.encode()) > 2 * POSITIONS
    assert text.startswith("x" * 2 * POSITIONS)


def test_samples_repeat_with_a_seed_and_differ_without(call):
    sample = ("--prompt", "a", "--temperature", 1.5, "--top_k", 40, "--top_p", 0.9)
    sample += ("--max_new_tokens", 20)
    first = call(*sample, "--seed", 1)
    assert call(*sample, "--seed", 1) == first
    assert len({first, call(*sample), call(*sample)}) == 3
    assert len(set(call(*sample, "--num_return_sequences", 2).split("\n\n"))) == 2


PENALTIES = ("temperature", "repetition_penalty")


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("--do_sample", "false", "--top_k", "3"), ("--top_k", "--do_sample")),
        (("--top_p", "2"), ("--top_p", 2)),
        (("--temperature", "-1"), ("--temperature",)),
        *(((f"--{key}", x), (key,)) for key in PENALTIES for x in ("nan", "inf")),
        (("--prompt", "a", "--interactive"), ("--prompt", "--interactive")),
        (("--vocab_file", "x"), ("--tokenizer_type",)),
        (("--tokenizer_type", "GPT2Tokenizer"), ("--vocab_file", "--encoder_file")),
        (("-o", "nowhere"), ("nowhere", "params.yaml")),
        (("-p", "To be or not"), ("To be or not", "--prompt")),
        (("--prompt", "a\udcff"), ("--prompt", "0xff")),
    ],
)
def test_mistakes_are_refused(call, words, facts):
    with raises(CerebrasError, *facts):
        call(*words)


def test_the_end_of_typed_prompts_ends_its_line(monkeypatch, capsys):
    terminal = io.StringIO("To be\n")
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    assert list(typed_lines()) == ["To be"]
    assert capsys.readouterr().out == "> > \n"


def test_the_checkpoint_that_training_started_from_is_not_the_models(model, call, tmp_path):
    folder = model.params.runconfig.model_dir
    other = SmallModel("gpt3", tmp_path, initializer={"name": "random_normal", "stddev": 0.1})
    tree = small_tree("gpt3")
    tree["runconfig"]["checkpoint_path"] = other.checkpoint
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tree))
    few = ("--prompt", "To be", *GREEDY, "--max_new_tokens", 6)
    expected = call(*few)
    assert call("-p", tmp_path / "params.yaml", *few) == expected
    chosen = call("-p", tmp_path / "params.yaml", "--checkpoint_path", other.checkpoint, *few)
    assert chosen != expected and folder != str(tmp_path)


def test_the_model_needs_a_tokenizer(tmp_path):
    tree = small_tree("gpt3")
    tree["train_input"].update(data_processor="GptTfRecordsProcessor", data_dir="nowhere")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tree))
    with raises(ConfigError, tmp_path, "tokenizer.json", "--tokenizer_type"):
        run_command(["generate", "-o", str(tmp_path), "--prompt", "a"])


def test_a_hugging_face_model_goes_from_rows_to_text_and_back(tmp_path, monkeypatch, capsys):
    library = pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "theirs", "gpt2", eos_token_id=0)
    words = ["<|endoftext|>", *(f"w{number}" for number in range(12))]
    model = library.models.WordLevel({word: number for number, word in enumerate(words)}, "w0")
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    tokenizer.save("theirs/tokenizer.json")
    (tmp_path / "rows").mkdir()
    for name in "ab":
        text = " ".join(words[1:]) + " "
        (tmp_path / "rows" / f"{name}.jsonl").write_text(json.dumps({"text": 20 * text}) + "\n")
    run_command(["convert", "to_tf", "theirs", "ours"])
    start = ["-p", "ours/params.yaml", "--checkpoint_path", "ours", "-o", "mine"]
    data = ["--set", "train_input.data_dir=rows", "--max_steps", "2"]
    run_command(["train_and_eval", *start, *data, "--device", "/cpu:0"])
    (tmp_path / "ours").rename("moved")  # mine is complete
    run_command(["convert", "from_tf", "mine", "back"])
    tokens = (tmp_path / "back" / "tokenizer.json").read_bytes()
    assert tokens == (tmp_path / "theirs" / "tokenizer.json").read_bytes()
    assert json.loads((tmp_path / "back" / "config.json").read_text())["eos_token_id"] == 0
    capsys.readouterr()
    run_command(["generate", "-o", "mine", "--prompt", "w1 w2", "--max_new_tokens", "9"])
    assert set(capsys.readouterr().out.replace("w1 w2", "w1 w2 ", 1).split()) <= set(words)
