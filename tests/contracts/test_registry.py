"""The tables of ops, kernels and lowerings fit each other, and cover what training graphs use."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest


def table(module: str, name: str) -> dict:
    """A registry's table after every module of its package has registered what it has."""
    package_name = module.rpartition(".")[0]
    package = importlib.import_module(package_name)
    for info in pkgutil.walk_packages(package.__path__, f"{package_name}."):
        importlib.import_module(info.name)
    return getattr(importlib.import_module(module), name)


@pytest.fixture(scope="module")
def ops():
    return table("cerebras_tf.ops.registry", "OPS")


@pytest.fixture(scope="module")
def plain():
    return table("cerebras_tf.kernels.registry", "PLAIN")


@pytest.fixture(scope="module")
def compiled():
    return table("cerebras_tf.kernels.registry", "COMPILED")


def test_every_op_has_a_plain_kernel_or_is_structural(ops, plain):
    computed = {name for name, op in ops.items() if op.structure is None}
    assert sorted(computed - set(plain)) == []


def test_no_structural_op_has_a_kernel(ops, plain):
    assert sorted(name for name in plain if name in ops and ops[name].structure) == []


def test_structural_ops_with_compiled_regions_have_a_cost_and_a_way_to_run(ops):
    from cerebras_tf.runtime.cpu import STRUCTURAL

    compiled = {n: op.structure for n, op in ops.items() if op.structure is not None}
    compiled = {n: structure for n, structure in compiled.items() if structure.compiles_regions}
    assert set(compiled) == set(STRUCTURAL)
    assert all(structure.cost is not None for structure in compiled.values())


def test_every_plain_kernel_has_an_op(ops, plain):
    assert sorted(set(plain) - set(ops)) == []


def test_every_compiled_kernel_stands_beside_a_plain_one(plain, compiled):
    assert sorted(set(compiled) - set(plain)) == []


def test_every_op_has_a_gradient_or_says_that_it_has_none(ops):
    silent = [name for name, op in ops.items() if op.differentiable and not op.has_gradient]
    assert sorted(silent) == []


def test_no_op_without_a_derivative_has_a_gradient(ops):
    both = [name for name, op in ops.items() if not op.differentiable and op.has_gradient]
    assert sorted(both) == []


def test_ops_are_defined_in_the_family_file_they_name(ops):
    for name, op in ops.items():
        module = importlib.import_module(f"cerebras_tf.ops.{op.family}")
        assert module.__doc__, f"{name}: cerebras_tf/ops/{op.family}.py"


def test_every_op_states_its_effects(ops):
    """Rows have no default; what draws, broadcasts or is cheap must fit what else is said."""
    for name, op in ops.items():
        assert list(inspect.signature(op.rows).parameters) == ["node", "axes"], name
        assert op.elementwise or not op.broadcasts, name
        assert op.cheap or not op.elementwise, name


def test_ops_draw_where_their_kernels_take_step_and_seeds(ops, plain):
    """Attention draws where it has a rate: its kernel then finds both among its operands."""
    taking = {name for name, f in plain.items() if "seeds" in inspect.signature(f).parameters}
    assert {name for name, op in ops.items() if op.draws({})} == taking
    dropping = {name for name, op in ops.items() if op.draws({"rate": 0.1})}
    with_weights = {"attention", "attention_grad", "packed_attention", "packed_attention_grad"}
    assert dropping - taking == with_weights


def test_no_pass_lists_ops_by_a_property(ops, sources):
    """What holds for several ops is a field of OpDef, so that a new op cannot be forgotten."""
    faults = []
    for source in sources:
        if not source.path.startswith(("cerebras_tf/passes/", "cerebras_tf/ops/builder")):
            continue
        for node in source.tree.body:
            if not isinstance(node, (ast.Assign, ast.AnnAssign)):
                continue
            words = {x.value for x in ast.walk(node) if isinstance(x, ast.Constant)}
            if len(words & set(ops)) > 1:
                faults.append(f"{source.path}:{node.lineno}")
    assert not faults, "\n".join(faults)


@pytest.mark.tf
def test_every_op_type_of_training_graphs_has_a_lowering_or_is_a_check_of_the_session():
    """tf_op_types.txt: forward and update ops of 23 training graphs, most by other authors."""
    listed = (Path(__file__).parent / "tf_op_types.txt").read_text(encoding="utf-8").split()
    lowerings = table("cerebras_tf.capture.registry", "LOWERINGS")
    checks = table("cerebras_tf.capture.capture", "CHECKS")
    assert len(listed) == 83
    assert sorted(set(listed) - set(lowerings) - set(checks)) == []
