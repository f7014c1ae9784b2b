"""`cerebras-tf convert`: what it prints and the codes it exits with."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from modelzoo.commands.main import main
from tests.modelzoo.common.convert.models import write_model


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
