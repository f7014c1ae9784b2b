"""Programs run from files: features from an .npz, variables from a checkpoint."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from cerebras_tf.bundle.index import read_index
from cerebras_tf.bundle.writer import BundleWriter
from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.errors import CheckpointError, DataError
from cerebras_tf.ir.program import RANDOM_STEP
from cerebras_tf.ir.program_file import load_program, save_program
from cerebras_tf.ir.step import Draw
from cerebras_tf.memoryx.store import MemoryStore
from cerebras_tf.runtime.random_streams import RANDOM_STEP_KEY
from cerebras_tf.runtime.saved_run import describe_saved, read_variable, run_saved
from modelzoo.commands.main import main
from tests.machines import client_of
from tests.runtime.test_packing import BATCHES, tagging_step
from tests.steps import StepBuilder, expected, features_of, residual_step, starting_values


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
    assert set(entries) == {*variables, "global_step", RANDOM_STEP_KEY}  # no step is counted
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
    with zipfile.ZipFile(tmp_path / "more.npz", "a") as archive:
        archive.writestr("notes.txt", "text")
    for name, fault in {"none": "No such file", "more": "notes.txt"}.items():
        with pytest.raises(DataError, match=f"must be an .npz file.*{fault}"):
            run_saved(program, str(tmp_path / f"{name}.npz"), checkpoint)
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
    with pytest.raises(CheckpointError, match=r"must contain variable .* Received: bfloat16\["):
        run_saved(program, inputs, str(tmp_path / "half"))


def test_a_damaged_checkpoint_is_told(files, tmp_path):
    program, inputs, checkpoint = files
    (data,) = tmp_path.glob("model.ckpt-7.data-*")
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.unlink()
    data.write_bytes(content)
    with pytest.raises(CheckpointError, match="undamaged. Received: other bytes"):
        run_saved(program, inputs, checkpoint)


def test_a_program_of_several_wafers_does_not_run_alone(files, tmp_path):
    _, inputs, checkpoint = files
    program = str(tmp_path / "two.zip")
    save_program(compile_step(residual_step(), Options(wafers=2)), program)
    assert "runs on 2 wafers" in describe_saved(program)
    with pytest.raises(
        DataError, match="number of wafers that it was compiled for, 2. Received: 1"
    ):
        run_saved(program, inputs, checkpoint)


def noisy_step():
    """The sum of what was drawn so far, by an op whose invocations may differ in size."""
    s = StepBuilder()
    x, seeds = s.feature("x", 4), s.feature(f"{RANDOM_STEP}/noise", 3, dtype="int64")
    numbers = s.b.op(
        "random_uniform", s.feature(RANDOM_STEP, dtype="int64"), seeds, shape=(4,), dtype="float32"
    )
    total = s.variable("total", 4)
    s.step.updates["total"] = s.b.op("add", total, s.b.op("mul", x, numbers))
    s.step.draws[f"{RANDOM_STEP}/noise"] = Draw(3, 5, 4)
    return s.done(numbers=numbers)


def test_random_ops_go_on_where_the_checkpoint_says_they_stopped(tmp_path):
    program, inputs = str(tmp_path / "noisy.zip"), str(tmp_path / "x.npz")
    save_program(compile_step(noisy_step()), program)
    np.savez(inputs, x=np.ones(4, "f"))
    writer = BundleWriter(str(tmp_path))
    writer.add("total", np.zeros(4, "f"))
    writer.add("global_step", np.array(2, np.int64))
    writer.add(RANDOM_STEP_KEY, np.array(5, np.int64))
    writer.add(f"{RANDOM_STEP_KEY}/{RANDOM_STEP}/noise", np.array(20, np.int64))
    writer.finish(str(tmp_path / "first"))
    once = run_saved(program, inputs, str(tmp_path / "first"), 4)
    half, rest = str(tmp_path / "half"), str(tmp_path / "rest")
    run_saved(program, inputs, str(tmp_path / "first"), 3, save=half)
    again = run_saved(program, inputs, half, 1, save=rest)
    np.testing.assert_array_equal(again["numbers"], once["numbers"])
    entries = read_index(rest)
    told = {n: int(read_variable(n, entries[n])) for n in entries if n != "total"}
    assert told == {
        "global_step": 2,
        RANDOM_STEP_KEY: 9,
        f"{RANDOM_STEP_KEY}/{RANDOM_STEP}/noise": 36,
    }


def test_a_program_without_padding_asks_for_the_batch_alone(tmp_path, capsys):
    step = tagging_step(4)
    program, inputs = str(tmp_path / "tags.zip"), str(tmp_path / "batch.npz")
    save_program(compile_step(tagging_step(4), Options(strip=True)), program)
    told = [line for line in describe_saved(program).splitlines() if line.startswith("input")]
    assert sorted(line.split()[1] for line in told) == sorted(BATCHES[0])
    np.savez(inputs, **BATCHES[0])
    writer = BundleWriter(str(tmp_path))
    for name, content in starting_values(step).items():
        writer.add(name, content)
    writer.finish(str(tmp_path / "tags"))
    found = run_saved(program, inputs, str(tmp_path / "tags"))
    padded = str(tmp_path / "padded.zip")
    save_program(compile_step(tagging_step(4)), padded)
    wanted = run_saved(padded, inputs, str(tmp_path / "tags"))
    np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=1e-5)
    session = client_of(load_program(program), MemoryStore([]))
    with pytest.raises(DataError, match="features must be (?!.*packing/)"):
        session.run({"ids": BATCHES[0]["ids"]})
