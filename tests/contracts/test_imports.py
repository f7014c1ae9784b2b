"""Which package may import which. PACKAGES is the table; everything else here enforces it.

Imports inside functions and under TYPE_CHECKING count like all others: a reader who follows them
gets lost in a cycle just the same. Imports by a computed name are not seen.
"""

from __future__ import annotations

import ast
import graphlib
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Package(NamedTuple):
    """What a package may import besides itself, `EVERYWHERE` and the standard library."""

    packages: frozenset[str]
    outside: frozenset[str]


def package(packages: str = "", outside: str = "") -> Package:
    """A row of the table; names are separated by spaces."""
    return Package(frozenset(packages.split()), frozenset(outside.split()))


BELOW_ESTIMATOR = (
    "config ir ops kernels wafer passes compiler bundle memoryx swarmx runtime address capture "
    "console tf_compat tf_session frontend step checkpoints"
)
ABOVE = f"{BELOW_ESTIMATOR} estimator report"
EVERYWHERE = {
    "collector",
    "environment",
    "errors",
    "installing",
    "quantities",
    "run_module",
    "suggestions",
    "user_files",
    "whole_file",
}
# Numba brings llvmlite. TensorFlow speaks NumPy arrays, so where it is allowed NumPy is too.
PACKAGES = {
    "collector": package(),
    "environment": package(),
    "errors": package(),
    "installing": package(),
    "quantities": package(),
    "run_module": package(),
    "suggestions": package(),
    # Each where such a file is read: NumPy for .npz, PyTorch for .bin.
    "user_files": package(outside="numpy torch"),
    "whole_file": package(),
    "config": package(),
    "ir": package(outside="numpy"),
    "ops": package("ir", outside="numpy"),
    "kernels": package("ops", outside="numpy numba llvmlite scipy_openblas32"),
    # The machines are YAML files.
    "wafer": package(outside="numpy yaml"),
    "passes": package("ir ops kernels", outside="numpy"),
    "compiler": package("ir ops passes wafer"),
    "memoryx": package("ir kernels", outside="numpy"),
    "bundle": package("ir kernels memoryx", outside="numpy"),
    "swarmx": package(outside="numpy mpi4py"),
    "runtime": package("ir ops kernels wafer bundle memoryx swarmx", outside="numpy"),
    # A wafer on another computer. gRPC and cryptography are imported where it is used.
    "address": package(
        "root config ir kernels ops memoryx swarmx runtime", outside="numpy grpc cryptography"
    ),
    # The only package that imports private names of TensorFlow, see test_tensorflow_internals.py.
    "tf_compat": package(outside="tensorflow triton"),
    "capture": package("ir ops kernels tf_compat", outside="tensorflow numpy"),
    "console": package("ir kernels memoryx runtime swarmx", outside="numpy tqdm wandb"),
    "tf_session": package("ir kernels memoryx tf_compat capture", outside="tensorflow numpy"),
    # What any front end needs: no framework here.
    "frontend": package("ir ops kernels passes compiler memoryx swarmx runtime", outside="numpy"),
    "capture_torch": package("ir ops kernels", outside="torch numpy"),
    "torch_recording": package("capture_torch torch_step", outside="torch"),
    "torch_step": package(
        "config ir kernels compiler memoryx swarmx runtime address frontend capture_torch",
        outside="torch transformers numpy",
    ),
    "torch": package(
        "config ir kernels memoryx swarmx runtime frontend console capture_torch torch_step",
        outside="torch numpy",
    ),
    "torch_compile": package("ir compiler memoryx runtime capture_torch", outside="torch numpy"),
    "step": package(
        "ir kernels compiler memoryx swarmx runtime frontend tf_compat capture console tf_session",
        outside="tensorflow numpy",
    ),
    # Lists of checkpoints are protocol buffers (google.protobuf, which TensorFlow brings).
    "checkpoints": package(
        "ir kernels bundle memoryx swarmx runtime frontend tf_compat capture console tf_session "
        "step",
        outside="tensorflow tensorflow_estimator numpy google",
    ),
    "estimator": package(
        f"{BELOW_ESTIMATOR} report", outside="tensorflow tensorflow_estimator numpy tqdm google"
    ),
    "report": package("ir wafer", outside="numpy"),
    "cli": package(ABOVE),
    # The import names of the original software. Public names only, see `private_names`. Its
    # configuration messages are protocol buffers (google.protobuf, which TensorFlow brings).
    "dropin": package(
        f"{ABOVE} capture_torch torch_step torch_recording root", outside="google torch"
    ),
    # Public names, loaded on first use: cerebras_tf/__init__.py and cerebras_tf/api.py.
    # It sets tf.estimator where TensorFlow lacks it.
    "root": package("tf_compat"),
    "api": package(),
}
# Top-level names that cerebras_tf/dropin is installed under.
DROPIN_NAMES = {
    "cerebras",
    "cerebras_appliance",
    "cerebras_pytorch",
    "cerebras_tensorflow",
    "tfwse",
}
OURS = {"cerebras_tf"} | DROPIN_NAMES
STDLIB = {path.name.partition(".")[0] for path in Path(sysconfig.get_path("stdlib")).iterdir()}
STDLIB |= {path.name.partition(".")[0] for path in Path(sysconfig.get_path("platstdlib")).iterdir()}
STDLIB |= set(getattr(sys, "stdlib_module_names", sys.builtin_module_names))
LIB_DYNLOAD = Path(sysconfig.get_path("platstdlib")) / "lib-dynload"
if LIB_DYNLOAD.is_dir():
    STDLIB |= {path.name.partition(".")[0] for path in LIB_DYNLOAD.iterdir()}


class Import(NamedTuple):
    """One imported name: `module` or `module.name`, as dotted words, and where it stands."""

    words: tuple[str, ...]
    where: str


def module_of(path: str) -> tuple[str, ...]:
    """Dotted words of the package a file's relative imports start from."""
    return tuple(Path(path).parent.parts)


def imports_of(source) -> Iterator[Import]:
    """Every import in a file, local ones and literal `import_module` calls included."""
    for node in ast.walk(source.tree):
        where = f"{source.path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(tuple(alias.name.split(".")), where)
        elif isinstance(node, ast.ImportFrom):
            package = module_of(source.path)
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = tuple(node.module.split(".")) if node.module else ()
            for alias in node.names:
                yield Import((*base, *module, alias.name), where)
        elif isinstance(node, ast.Call) and is_import_call(node):
            yield Import(tuple(node.args[0].value.split(".")), where)


def is_import_call(node: ast.Call) -> bool:
    """Is it `import_module("literal")` or `__import__("literal")`?"""
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    literal = node.args and isinstance(node.args[0], ast.Constant)
    return bool(literal and name in ("import_module", "__import__"))


def package_of(words: tuple[str, ...]) -> str:
    """The package of cerebras_tf that a dotted name or a path's parts belong to."""
    if words[0] in DROPIN_NAMES:
        return "dropin"
    name = words[1].partition(".")[0] if len(words) > 1 else "root"
    return name if name in PACKAGES else "root"


def sources_of(sources, *, under: str):
    """The files below a folder; at least one, or the folder's name is wrong."""
    return [source for source in sources if source.path.startswith(under)]


def test_package_table_has_no_cycles():
    arrows = {name: row.packages for name, row in PACKAGES.items()}
    order = list(graphlib.TopologicalSorter(arrows).static_order())
    assert set(order) == set(PACKAGES)


def test_every_folder_of_the_package_is_a_row_of_the_table(root):
    entries = [path for path in (root / "cerebras_tf").iterdir() if path.name != "__pycache__"]
    names = {path.stem for path in entries if path.is_dir() or path.suffix == ".py"}
    assert names - {"__init__"} <= set(PACKAGES)


def test_names_of_the_dropin_are_its_folders(root):
    roots = {path.name for path in (root / "cerebras_tf/dropin/roots").iterdir() if path.is_dir()}
    assert {"cerebras"} | (roots - {"__pycache__"}) == DROPIN_NAMES


def test_packages_import_only_the_packages_below_them(sources):
    faults = []
    for source in sources_of(sources, under="cerebras_tf/"):
        here = package_of(Path(source.path).parts)
        for found in imports_of(source):
            if found.words[0] not in OURS:
                continue
            there = package_of(found.words)
            if there not in {here} | EVERYWHERE | PACKAGES[here].packages:
                faults.append(f"{found.where}: {here} may not import {'.'.join(found.words)}")
    assert not faults, "\n".join(faults)


def test_packages_import_only_the_outside_packages_of_the_table(sources):
    faults = []
    for source in sources_of(sources, under="cerebras_tf/"):
        here = package_of(Path(source.path).parts)
        for found in imports_of(source):
            name = found.words[0]
            if name in STDLIB | OURS:
                continue
            if name not in PACKAGES[here].outside:
                faults.append(f"{found.where}: {here} may not import {name}")
    assert not faults, "\n".join(faults)


def private_names(found: Import) -> bool:
    """Does the import reach for a name that starts with one underscore?"""
    return any(word.startswith("_") and not word.startswith("__") for word in found.words)


def test_dropin_and_modelzoo_use_public_names_of_the_package(sources):
    faults = []
    for under in ("cerebras_tf/dropin/", "modelzoo/"):
        for source in sources_of(sources, under=under):
            faults += [
                f"{found.where}: {'.'.join(found.words)} is private"
                for found in imports_of(source)
                if found.words[0] == "cerebras_tf" and private_names(found)
            ]
    assert not faults, "\n".join(faults)


def test_models_import_only_modelzoo_common(sources):
    faults = []
    for source in sources_of(sources, under="modelzoo/"):
        parts = Path(source.path).parts
        if len(parts) < 3 or parts[1] in ("common", "commands"):
            continue
        allowed = {("modelzoo", "common"), ("modelzoo", parts[1])}
        allowed |= {
            ("cerebras_tf", name) for name in ("errors", "installing", "user_files", "whole_file")
        }
        faults += [
            f"{found.where}: the model {parts[1]} may not import {'.'.join(found.words)}"
            for found in imports_of(source)
            if found.words[0] in OURS | {"modelzoo"} and found.words[:2] not in allowed
        ]
    assert not faults, "\n".join(faults)


def test_modelzoo_common_imports_no_model(sources):
    faults = [
        f"{found.where}: modelzoo/common may not import {'.'.join(found.words)}"
        for source in sources_of(sources, under="modelzoo/common/")
        for found in imports_of(source)
        if found.words[0] == "modelzoo" and found.words[1:2] not in ((), ("common",))
    ]
    assert not faults, "\n".join(faults)


def test_commands_read_arguments_for_others_and_are_imported_by_none(sources):
    faults = [
        f"{found.where}: nothing below may import {'.'.join(found.words)}"
        for source in [
            *sources_of(sources, under="modelzoo/"),
            *sources_of(sources, under="cerebras"),
        ]
        for found in imports_of(source)
        if found.words[:2] == ("modelzoo", "commands")
        and not source.path.startswith("modelzoo/commands/")
    ]
    assert not faults, "\n".join(faults)


def test_nothing_in_the_packages_imports_upwards(sources):
    upwards = {"cerebras_tf": {"modelzoo", "scripts", "tests"}, "modelzoo": {"scripts", "tests"}}
    faults = [
        f"{found.where}: {package} may not import {'.'.join(found.words)}"
        for package, forbidden in upwards.items()
        for source in sources_of(sources, under=f"{package}/")
        for found in imports_of(source)
        if found.words[0] in forbidden
    ]
    assert not faults, "\n".join(faults)
