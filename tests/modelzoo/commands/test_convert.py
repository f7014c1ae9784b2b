"""`cerebras-tf convert`: what it prints and the codes it exits with."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from modelzoo.commands.main import main
from tests.modelzoo.bert.fine_tuning.made_data import write_tagged, write_vocabulary
from tests.modelzoo.bert.fine_tuning.question_answering.made_squad import articles, write_squad
from tests.modelzoo.common.convert.models import CASES, write_model


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs a command on folders of the test's own; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")  # the command sets it; undone at the end

    def run_command(*words):
        code = main(["convert", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


def test_model_goes_there_and_back_and_is_verified(run, tmp_path):
    write_model(tmp_path / "theirs", "gpt_neox")
    code, out, _ = run("to_tf", "theirs", "ours")
    assert code == 0
    assert "28 tensors, 11224 weights: ours/model.ckpt-0." in out
    assert "-p ours/params.yaml --checkpoint_path ours " in out
    assert run("from_tf", "ours", "back", "--max_shard_gb", "0.00001")[0] == 0
    assert len(list((tmp_path / "back").glob("model-*.safetensors"))) > 1
    code, out, _ = run("verify", "back", "ours")
    assert (code, out.startswith("11224 weights are equal bit for bit.")) == (0, True)


def test_verify_exits_with_2_where_a_tensor_differs(run, tmp_path):
    tensors = write_model(tmp_path / "theirs", "gpt2")
    run("to_tf", "theirs", "ours")
    name = "transformer.h.1.mlp.c_fc.bias"
    tensors[name][0] += 1.0
    write_model(tmp_path / "theirs", "gpt2", extra=tensors)
    code, out, err = run("verify", "theirs", "ours")
    assert (code, out) == (2, "")
    assert f"dense_layer_2/bias ({name}): 1 of 12 differ, by up to 1." in err


def test_other_programs_and_types_are_options(run, tmp_path):
    write_model(tmp_path / "theirs", "bert", hidden_act="gelu_new")
    run("to_tf", "theirs", "ours")
    assert run("from_tf", "ours", "google", "--program", "google_bert")[0] == 0
    assert (tmp_path / "google" / "bert_model.ckpt.index").exists()
    assert run("verify", "google", "ours", "--program", "google_bert")[0] == 0
    assert run("from_tf", "ours", "half", "-p", "ours/params.yaml", "--dtype", "float16")[0] == 0
    assert run("verify", "half", "ours", "--dtype", "float16")[0] == 0
    assert run("verify", "half", "ours")[0] == 2
    code, _, err = run("from_tf", "ours", "no", "--program", "google_bert", "--dtype", "float16")
    assert (code, "--dtype: must be float32" in err) == (2, True)


def test_checkpoint_gets_another_step_and_the_origin_is_named(run, tmp_path):
    write_model(tmp_path / "theirs", "gpt2", eos_token_id=4)
    run("to_tf", "theirs", "ours")
    code, out, err = run("renumber", "ours", "later", "38000")
    assert (code, err, out.startswith("later/model.ckpt-38000: as ours.")) == (0, "", True)
    code, _, err = run("renumber", "ours", "later", "38000")
    assert (code, "later: must not contain a checkpoint." in err) == (2, True)
    words = ("from_tf", "later", "back", "-p", "ours/params.yaml", "--config_from", "theirs")
    assert run(*words)[0] == 0
    assert '"eos_token_id": 4' in (tmp_path / "back" / "config.json").read_text()


SENTENCES = "the film was a story of rain and the rain was warm . the story was dull . " * 6


def write_classes(folder):
    folder.mkdir()
    rows = [f"the film was {word}\t{label}" for word, label in (("fine", "yes"), ("dull", "no"))]
    (folder / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows * 4]) + "\n")


def write_text(folder):
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.txt").write_text(SENTENCES.replace(". ", ".\n"))


@pytest.mark.parametrize(
    ("name", "write_data"),
    [
        ("gpt2", lambda: write_text(Path("DATA"))),
        ("bert", lambda: write_text(Path("TEXT"))),
        ("bert_classifier", lambda: write_classes(Path("DATA"))),
        ("bert_token_classifier", lambda: write_tagged(Path("FOLDER"))),
        ("bert_question_answering", lambda: write_squad(Path("TRAIN.json"), articles(24))),
    ],
)
def test_the_commands_that_follow_run_as_they_are_printed(
    run, tmp_path, monkeypatch, capsys, name, write_data
):
    library = pytest.importorskip("tokenizers")
    architecture, config = CASES[name]
    labels = {str(i): label for i, label in enumerate(["no", "B-Disease", "I-Disease", "O", "yes"])}
    labels = {"id2label": labels} if "id2label" in config else {}
    sizes = {"vocab_size": 28, "n_positions": 24, "max_position_embeddings": 24}
    sizes = {key: value for key, value in sizes.items() if key in config}
    monkeypatch.setitem(CASES, name, (architecture, {**config, **sizes, **labels}))
    write_model(tmp_path / "theirs", name)
    words = write_vocabulary(tmp_path / "theirs").read_text().split()
    if name == "gpt2":
        numbers = {word: number for number, word in enumerate(["<|endoftext|>", *words[1:]])}
        made = library.Tokenizer(library.models.WordLevel(numbers, unk_token="[UNK]"))
        made.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
        made.save(str(tmp_path / "theirs" / "tokenizer.json"))
        (tmp_path / "theirs" / "vocab.txt").unlink()
    code, out, err = run("to_tf", "theirs", "our model")
    assert code == 0, err
    write_data()
    printed = [line.partition(": cerebras-tf ") for line in out.splitlines()[1:]]
    commands = [shlex.split(command) for _, _, command in printed]
    assert [words[0] for words in commands][-1] == "train"
    for words in commands:
        words = [word.replace("NUMBER_OF_LABELS", "7") for word in words]
        few = ["--max_steps", "1"] if words[0] == "train" else []
        assert main([*words, *few]) == 0, capsys.readouterr().err
    assert Path("MODEL_DIR", "model.ckpt-1.index").exists()
