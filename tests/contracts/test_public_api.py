"""The zoo, benchmarks and scripts import only the names that docs/reference/api.md lists."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

import cerebras_tf
from cerebras_tf import api
from tests.contracts.test_imports import imports_of

# Packages and modules that are public as a whole.
MODULES = {"config", "environment", "errors", "installing", "suggestions", "whole_file"}
MODULES |= {"user_files"}
# What benchmarks measure; they change with it.
MEASURED = {
    "address.choose",
    "capture.variables",
    "compiler.pipeline",
    "estimator.call",
    "estimator.model_graph",
    "estimator.run_config",
    "frontend.model_step",
    "ir.program",
    "ir.schedule",
    "ir.step",
    "kernels.blas",
    "kernels.instruction_set",
    "memoryx.disk_speed",
    "memoryx.store",
    "tf_compat.internals",
    "torch_step",
    "runtime",
    "step",
    "swarmx.mpi",
    "swarmx.swarm",
    "tf_session",
}
NAMES = {*cerebras_tf.__all__, *(f"api.{name}" for name in api.__all__), "api"}


def documented(root) -> set[str]:
    """The names that stand in bold at the beginning of the page's entries."""
    text = (root / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\*\*.+\*\*$", text, flags=re.MULTILINE)
    return {name for line in lines for name in re.findall(r"`([\w.]+)`", line)}


def is_public(words: tuple[str, ...], benchmark: bool) -> bool:
    """Is an imported dotted name public, or for a benchmark one of those it measures?"""
    name = ".".join(words[1:])
    if not name or name in NAMES or words[1] in MODULES:
        return True
    return benchmark and any(name == each or name.startswith(f"{each}.") for each in MEASURED)


def test_the_zoo_imports_public_names_only(sources):
    faults = [
        f"{found.where}: {'.'.join(found.words)}"
        for source in sources
        if source.path.startswith(("modelzoo/", "benchmarks/", "scripts/"))
        for found in imports_of(source)
        if found.words[0] == "cerebras_tf"
        and not is_public(found.words, source.path.startswith("benchmarks/"))
    ]
    assert not faults, "\n".join(faults)


def test_every_public_name_is_documented(root):
    names = {f"cerebras_tf.{name}" for name in {*cerebras_tf.__all__, *MODULES} - {"__version__"}}
    assert documented(root) == names | set(api.__all__)


TORCH = {"TorchFunction", "TorchModel", "TorchTraining", "fit", "torch_checkpoints"}
TORCH |= {"LoraSettings", "PretrainedModel", "load_tensors"}


@pytest.mark.tf
@pytest.mark.parametrize("name", api.__all__)
def test_every_public_name_can_be_imported_and_is_used(name, sources):
    pytest.importorskip("tensorflow")
    if name in TORCH:
        pytest.importorskip("torch", reason="torch is an extra")
    assert isinstance(getattr(api, name), ModuleType) == (name in api._MODULES)
    users = (s for s in sources if s.path.startswith(("modelzoo/", "benchmarks/", "scripts/")))
    assert any(re.search(rf"\b{name}\b", source.text) for source in users)


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="cerebras_tf.api.*'Session'"):
        api.Session  # noqa: B018
