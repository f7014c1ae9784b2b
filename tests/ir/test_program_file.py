"""Programs survive a file bit for bit, in a process that has no TensorFlow; bad files are named."""

from __future__ import annotations

import json
import math
import os
import zipfile

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import compile_step
from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Graph, TensorType, print_graph
from cerebras_tf.ir.program import Instruction, Program, Slot
from cerebras_tf.ir.program_file import (
    VERSION,
    load_origin,
    load_program,
    members_digest,
    save_program,
)
from cerebras_tf.ir.text import print_attribute
from tests.machines import run_program
from tests.messages import raises
from tests.other_process import train_elsewhere
from tests.steps import features_of, residual_step, starting_values


def shown(program):
    """Everything a program holds, comparable."""
    return (
        program.slots,
        {key: (v.dtype, v.shape, v.tobytes()) for key, v in program.constants.items()},
        [
            [(i.op, i.inputs, i.outputs, i.source, shown_attrs(i.attrs)) for i in body]
            for body in program.bodies
        ],
        program.schedule,
        program.layers,
        program.features,
        program.variables,
        program.results,
        program.gradients,
        program.draws,
        program.arena_bytes,
        program.flops,
    )


def shown_attrs(attrs):
    return {key: print_attribute(value) for key, value in attrs.items()}


@pytest.fixture
def program():
    return compile_step(residual_step(2))


def test_a_compiled_program_survives(program, tmp_path):
    path = tmp_path / "step.program"
    save_program(program, path)
    assert shown(load_program(path)) == shown(program)
    assert os.listdir(tmp_path) == ["step.program"]


def test_a_loaded_program_computes_the_same_bits(program, tmp_path):
    step = residual_step(2)
    variables, steps = starting_values(step), [features_of(step)] * 2
    save_program(program, tmp_path / "p")
    wanted = run_program(program, step, variables, steps)
    found = run_program(load_program(tmp_path / "p"), step, variables, steps)
    for ours, theirs in zip(found, wanted):
        for key in theirs:
            np.testing.assert_array_equal(ours[key], theirs[key])


def with_attribute(value):
    """A program of one instruction."""
    instruction = Instruction("op", (0,), (1,), {"key": value}, "tower/Op")
    return Program(slots=[Slot(TensorType("float32", (2, None)), "heap")], bodies=[[instruction]])


def attribute_after(value, folder):
    save_program(with_attribute(value), folder / "p")
    return load_program(folder / "p").bodies[0][0].attrs["key"]


@pytest.mark.parametrize(
    "value",
    [1, -2.5, 1e-30, True, None, 'a "quoted" text', (), (1, (None, "x")), [], [(1,), [2]]]
    + [{"k": (1, 2), 3: "number"}, b"\x00raw", math.inf, -math.inf, 2**70],
)
def test_literal_attributes_survive(value, tmp_path):
    found = attribute_after(value, tmp_path)
    assert found == value
    assert type(found) is type(value)


def test_a_nan_attribute_survives(tmp_path):
    assert math.isnan(attribute_after(math.nan, tmp_path))


def test_numpy_numbers_become_python_numbers(tmp_path):
    found = attribute_after((np.int64(3), np.float32(0.5)), tmp_path)
    assert found == (3, 0.5)
    assert [type(item) for item in found] == [int, float]


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5, np.float32),
        np.array([3.5], np.float32),
        np.zeros((0, 3)),
        np.array([True, False]),
        np.array([np.nan, np.inf], np.float16),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
    ],
)
def test_array_attributes_survive(array, tmp_path):
    found = attribute_after(array, tmp_path)
    np.testing.assert_array_equal(found, array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)


def test_graph_attributes_survive_with_their_constants(tmp_path):
    graph = Graph("body")
    kind = TensorType("float32", (40,))
    value = graph.add_input("x", kind)
    table = np.random.default_rng(0).standard_normal(40).astype(np.float32)
    constant = graph.make_node("constant", [], {"value": table, "dtype": "float32"}, [kind])
    add = graph.make_node("add", [value, constant.output], {}, [kind])
    graph.nodes, graph.outputs = [constant, add], [add.output]
    found = attribute_after(graph, tmp_path)
    assert print_graph(found) == print_graph(graph)
    np.testing.assert_array_equal(found.nodes[0].attrs["value"], table)


def test_equal_arrays_are_stored_once(tmp_path):
    arrays = [np.arange(100.0), np.arange(100.0), np.arange(100.0, dtype=np.float32)]
    program = Program(constants=dict(enumerate(arrays)))
    save_program(program, tmp_path / "p")
    with zipfile.ZipFile(tmp_path / "p") as archive:
        assert sum(name.endswith(".npy") for name in archive.namelist()) == 2
    assert load_program(tmp_path / "p").constants[2].dtype == np.float32


def test_other_attributes_are_refused_and_leave_the_old_file(tmp_path):
    path = tmp_path / "p"
    save_program(with_attribute("old"), path)
    before = path.read_bytes()
    with raises(GraphError, "object"):
        save_program(with_attribute(object()), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["p"]


def test_a_failed_write_leaves_the_old_file(program, tmp_path, monkeypatch):
    path = tmp_path / "p"
    save_program(with_attribute("old"), path)
    before = path.read_bytes()

    def full(file):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        save_program(program, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["p"]


def test_what_is_known_of_a_program_stands_in_its_file(tmp_path):
    path = tmp_path / "p"
    save_program(with_attribute("old"), path, {"seed": 1})
    with pytest.raises(GraphError):
        save_program(with_attribute(object()), path, {"seed": 2})
    assert load_origin(path) == {"seed": 1}
    assert load_program(path) is not None
    save_program(with_attribute("old"), path)
    assert load_origin(path) == {}
    path.write_text("no zip", encoding="utf-8")
    assert load_origin(path) == {}


def test_arrays_that_are_objects_are_refused(tmp_path):
    """They would need a pickle, and a pickle runs code when it is loaded."""
    with pytest.raises(ValueError, match="allow_pickle=False"):
        save_program(with_attribute(np.array([{}, None])), tmp_path / "p")
    assert os.listdir(tmp_path) == []


def rewritten(path, change):
    """The saved file with its structure changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    structure = json.loads(members["program.json"])
    change(structure)
    members["program.json"] = json.dumps(structure).encode()
    del members["digest"]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr("digest", members_digest(archive))


WRONG = {
    "another format": (lambda s: s.update(format="onnx"), ["cerebras_tf program", "onnx"]),
    "another version": (lambda s: s.update(version=99), [VERSION, 99]),
    "no steps": (lambda s: s.pop("steps"), ["steps"]),
    "an unknown entry": (lambda s: s["steps"].append(["jump", 3]), ["jump"]),
    "a wrong type": (lambda s: s["slots"].append(["quux[2]", "arena", 0, -1, [0, 0]]), ["quux"]),
    "a missing array": (lambda s: s["constants"].update({"0": "feed"}), ["feed"]),
}


@pytest.mark.parametrize(("change", "facts"), WRONG.values(), ids=WRONG.keys())
def test_files_of_other_kinds_are_named(change, facts, program, tmp_path):
    save_program(program, tmp_path / "p")
    rewritten(tmp_path / "p", change)
    with raises(GraphError, *facts):
        load_program(tmp_path / "p")


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_refused(keep, program, tmp_path):
    path = tmp_path / "p"
    save_program(program, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(GraphError):
        load_program(path)


def test_flipped_bytes_are_refused(program, tmp_path):
    path = tmp_path / "p"
    save_program(program, path)
    content = bytearray(path.read_bytes())
    at = content.index(b"stream_in")
    content[at] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(GraphError):
        load_program(path)


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_program(tmp_path / "absent")


def test_another_process_without_tensorflow_runs_a_saved_program(program, tmp_path):
    step = residual_step(2)
    variables, features = starting_values(step), features_of(step)
    save_program(program, tmp_path / "p")
    stacked = {name: np.asarray(array)[None] for name, array in features.items()}
    found = train_elsewhere(tmp_path / "p", tmp_path, variables, stacked)
    results, state = run_program(program, step, variables, [features])
    for name, content in results.items():
        np.testing.assert_array_equal(found[name], content[None])
    for name, content in state.items():
        np.testing.assert_array_equal(found[name], content)
