"""Private names of TensorFlow: in one module, and all of them in the installed TensorFlow."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

INTERNALS = "cerebras_tf/tf_compat/internals.py"
# Private names of the standard library, of Numba (kernels/compiled_jit.py), and one set by
# object.__setattr__.
OTHERS = {"_asdict", "_exit", "_hash", "_option_string_actions", "_parse_optional"}
OTHERS |= {"_CacheLocator", "_cache", "_ensure_finalized", "_final_module", "_shared_module"}
OTHERS |= {"_finalize_dynamic_globals", "_get_module_for_linking", "_verify_declare_only_symbols"}
OTHERS |= {"_impl", "_load_overload", "_codegen", "_loopvect", "_module_pass_manager", "_opt_level"}
# Of torch (capture_torch/internals.py).
OTHERS |= {"_backward_hooks", "_backward_pre_hooks", "_cdata", "_parameters"}
OTHERS |= {"_override_composite_implicit_decomp", "_split_decomp_table_to_cia_and_python_decomp"}
OTHERS |= {"_C", "_adafactor", "_forward_cls", "_is_functional_tensor", "_set_grad_enabled"}
OTHERS |= {"_global_backward_hooks", "_global_backward_pre_hooks"}
# Of models of transformers (torch_step/pretrained.py).
OTHERS |= {"_from_config", "_init_weights"}


def members() -> list[tuple[str, str]]:
    """Pairs of a module's or class' path and a private name of it."""
    tree = ast.parse(Path(__file__).parents[2].joinpath(INTERNALS).read_text(encoding="utf-8"))
    (table,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "MEMBERS"
    )
    return [(owner, name) for owner, names in table.items() for name in names.split()]


@pytest.mark.tf
def test_private_modules_exist():
    pytest.importorskip("tensorflow")
    internals = importlib.import_module("cerebras_tf.tf_compat.internals")
    missing = [name for name in internals.__all__ if not hasattr(internals, name)]
    assert not missing


@pytest.mark.tf
@pytest.mark.parametrize(("owner", "name"), members())
def test_private_members_exist(owner, name):
    tf = pytest.importorskip("tensorflow")
    importlib.import_module("cerebras_tf")
    assert tf.estimator.Estimator  # tf.estimator's modules load where they are provided
    module, _, attribute = owner.rpartition(".")
    try:
        found = importlib.import_module(owner)
    except ModuleNotFoundError:
        found = getattr(importlib.import_module(module), attribute)
    assert hasattr(found, name) or re.search(rf"self\.{name}\b", source_of_class(found))


def source_of_class(kind: type) -> str:
    """The source of a class and its bases, which set the attributes of instances."""
    bases = [base for base in kind.__mro__ if base.__module__.startswith("tensorflow")]
    return "".join(inspect.getsource(base) for base in bases if "_pywrap_" not in base.__module__)


def test_only_one_module_imports_private_modules_of_tensorflow(sources):
    faults = [
        f"{source.path}:{node.lineno}"
        for source in sources
        if source.path.startswith(("cerebras_tf/", "modelzoo/", "benchmarks/"))
        and source.path != INTERNALS
        for node in ast.walk(source.tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        and any(
            name.startswith(("tensorflow.python", "tensorflow_estimator"))
            for name in [getattr(node, "module", None) or "", *(a.name for a in node.names)]
        )
    ]
    assert not faults, f"Import these from {INTERNALS}: " + ", ".join(faults)


def test_private_names_of_others_are_in_the_table(sources):
    ours, used = set(OTHERS) | {name for _, name in members()}, {}
    for source in sources:
        if not source.path.startswith(("cerebras_tf/", "modelzoo/", "benchmarks/")):
            continue
        for node in ast.walk(source.tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                ours.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                ours.add(node.id)
            elif isinstance(node, ast.alias):
                ours.add(node.asname or node.name)
            elif isinstance(node, ast.arg):
                ours.add(node.arg)
            elif isinstance(node, ast.Attribute):
                own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                if own and isinstance(node.ctx, ast.Store):
                    ours.add(node.attr)
                elif re.match("_[A-Za-z]", node.attr):
                    used[node.attr] = f"{source.path}:{node.lineno}"
    unknown = [f"{where}: {name}" for name, where in used.items() if name not in ours]
    assert not unknown, f"Add these to MEMBERS in {INTERNALS}: " + ", ".join(unknown)
