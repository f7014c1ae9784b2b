"""Programs run from files: features from an .npz, variables from a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import compile_step
from cerebras_tf.errors import CheckpointError, DataError
from cerebras_tf.ir.program_file import save_program
from cerebras_tf.memoryx.bundle import read_index
from cerebras_tf.memoryx.bundle_writer import BundleWriter
from cerebras_tf.runtime.saved_run import describe_saved, read_variable, run_saved
from modelzoo.commands.main import main
from tests.steps import expected, features_of, residual_step, starting_values


@pytest.fixture
def files(tmp_path):
    """(program, inputs, checkpoint) of a small training step."""
    step = residual_step()
    save_program(compile_step(residual_step()), tmp_path / "program.zip")
    np.savez(tmp_path / "x.npz", **features_of(step))
    writer = BundleWriter(str(tmp_path))
    for name, content in starting_values(step).items():
        writer.add(name, content)
    writer.add("global_step", np.array(7, np.int64))
    writer.finish(str(tmp_path / "model.ckpt-7"))
    return tuple(str(tmp_path / name) for name in ("program.zip", "x.npz", "model.ckpt-7"))


def test_steps_and_variables_are_those_of_the_plain_kernels(files, tmp_path):
    program, inputs, checkpoint = files
    step = residual_step()
    features = features_of(step)
    results, variables = expected(step, starting_values(step), [features] * 3)
    found = run_saved(program, inputs, checkpoint, steps=3, save=str(tmp_path / "new/model.ckpt"))
    np.testing.assert_allclose(found["loss"], results["loss"], rtol=1e-5)
    entries = read_index(str(tmp_path / "new/model.ckpt"))
    assert set(entries) == {*variables, "global_step"}
    for name, content in variables.items():
        np.testing.assert_allclose(
            read_variable(name, entries[name]), content, rtol=1e-4, atol=1e-6
        )


def test_the_command_writes_results(files, tmp_path, capsys):
    program, inputs, checkpoint = files
    out = str(tmp_path / "y.npz")
    assert (
        main(["run", program, "--inputs", inputs, "--checkpoint", checkpoint, "--outputs", out])
        == 0
    )
    told = capsys.readouterr().out
    with np.load(out) as arrays:
        assert f"loss: {arrays['loss']}" in told and arrays["out"].shape == (8, 16)


def test_without_inputs_the_command_says_what_is_wanted(files, capsys):
    assert main(["run", files[0]]) == 0
    assert "input   x float32[8,16]" in capsys.readouterr().out
    assert "result  loss float32[]" in describe_saved(files[0])


def test_what_is_missing_is_named(files, tmp_path):
    program, inputs, checkpoint = files
    np.savez(tmp_path / "half.npz", x=np.zeros((8, 16), np.float32))
    with pytest.raises(DataError, match=r"missing: target float32\[8,16\]"):
        run_saved(program, str(tmp_path / "half.npz"), checkpoint)
    more = {"x": np.zeros((8, 16), np.float32), "target": np.zeros((8, 16), np.float32), "y": 1}
    np.savez(tmp_path / "more.npz", **more)
    with pytest.raises(DataError, match="Received: y besides"):
        run_saved(program, str(tmp_path / "more.npz"), checkpoint)
    with pytest.raises(DataError, match="must be an .npz file"):
        run_saved(program, str(tmp_path / "none.npz"), checkpoint)
    with pytest.raises(CheckpointError, match="has 28 variables. Received: no checkpoint"):
        run_saved(program, inputs)
    with pytest.raises(CheckpointError, match="its index must be readable"):
        run_saved(program, inputs, str(tmp_path / "none"))


def test_a_variable_of_another_dtype_is_refused(files, tmp_path):
    program, inputs, _ = files
    writer = BundleWriter(str(tmp_path))
    for name, content in starting_values(residual_step()).items():
        writer.add(name, np.zeros(content.shape, np.uint16), "bfloat16")
    writer.finish(str(tmp_path / "half"))
    with pytest.raises(CheckpointError, match=r"must hold variable .* Received: bfloat16\["):
        run_saved(program, inputs, str(tmp_path / "half"))


def test_a_damaged_checkpoint_is_told(files, tmp_path):
    program, inputs, checkpoint = files
    (data,) = tmp_path.glob("model.ckpt-7.data-*")
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.unlink()
    data.write_bytes(content)
    with pytest.raises(CheckpointError, match="as it was written. Received: other bytes"):
        run_saved(program, inputs, checkpoint)
