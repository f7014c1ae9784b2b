"""What tests of several packages share: threads per process, fixtures, the summary of checks."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Generator, MutableMapping
from itertools import chain
from typing import Any

import pytest

import cerebras_tf  # noqa: F401  # sets tf.estimator where TensorFlow lacks it

# Libraries that read their number of threads when they are loaded. This project's own threads sleep
# when they have no work, so they stay as many as the cores.
THREADS = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


def share_cores(environment: MutableMapping[str, str], cores: int) -> None:
    """Gives each of pytest-xdist's processes its share of the cores; a number that is set stays.

    Args:
        environment: variables; those of xdist say how many processes there are.
        cores: of this machine.
    """
    processes = int(environment.get("PYTEST_XDIST_WORKER_COUNT", 1))
    if processes > 1:
        for name in THREADS:
            environment.setdefault(name, str(max(1, cores // processes)))


share_cores(os.environ, os.cpu_count() or 1)


def freeze_what_lasts() -> None:
    """Spares Python's cyclic garbage collector what lives as long as pytest does.

    Modules of tests and of libraries are more than a million objects, and a full collection, of
    which a run on files makes some, walks over all of them.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freezes what was loaded to find the tests."""
    if "tensorflow" in sys.modules:
        omit_graph_text()
    freeze_what_lasts()
    session.config.stash[CPU_S] = cpu_seconds()


def omit_graph_text() -> None:
    """Leaves out graph.pbtxt, which takes an eighth of a short training on the host."""
    from tensorflow.python.training import training_util

    training_util.write_graph = lambda *args, **keys: None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: Any, nextitem: Any) -> None:
    """Freezes what was loaded and compiled by a module of tests, behind its last one."""
    if nextitem is not None and nextitem.path != item.path:
        freeze_what_lasts()


CPU_S = pytest.StashKey[float]()  # processor seconds up to the last phase of a test


def cpu_seconds() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Adds the processor seconds of setup, call or teardown to its report."""
    report = yield
    before, now = item.config.stash.get(CPU_S, 0.0), cpu_seconds()
    report.user_properties.append(("cpu_s", now - before))
    item.config.stash[CPU_S] = now
    return report


def show_costs(terminalreporter: Any, count: int) -> None:
    """Shows the modules of tests that took most processor seconds; other programs have no part."""
    costs: Counter[str] = Counter()
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            costs[report.nodeid.split("::")[0]] += dict(report.user_properties).get("cpu_s", 0.0)
    terminalreporter.section(f"processor seconds: {sum(costs.values()):.0f}")
    for module, seconds in costs.most_common(count):
        terminalreporter.write_line(f"{seconds:8.1f}  {module}")


LEFT_OUT = pytest.StashKey[int]()  # slow tests that -m left out


def pytest_deselected(items: list[Any]) -> None:
    """Counts slow tests; a process of pytest-xdist passes the number on."""
    config = items[0].config
    slow = sum(item.get_closest_marker("slow") is not None for item in items)
    config.stash[LEFT_OUT] = config.stash.get(LEFT_OUT, 0) + slow
    if hasattr(config, "workeroutput"):
        config.workeroutput["slow"] = config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    """Takes the number of a process of pytest-xdist, each of which finds all tests."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("slow", 0)


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    """Shows costs, what scripts/run_tests found before it started pytest, and slow tests."""
    if config.option.durations:
        show_costs(terminalreporter, config.option.durations)
    if config.stash.get(LEFT_OUT, 0) and config.option.markexpr == "not slow":
        line = (
            f"slow tests left out: {config.stash[LEFT_OUT]}. scripts/run_tests -m slow runs them."
        )
        terminalreporter.write_line(line)
    checks = os.environ.get("CEREBRAS_TF_CHECKS")
    if checks:
        terminalreporter.write_line(checks, red="FAILED" in checks, green="FAILED" not in checks)


@pytest.fixture
def graph():
    """A tf.Graph that is the default graph."""
    tf = pytest.importorskip("tensorflow")
    with tf.Graph().as_default() as graph:
        yield graph
