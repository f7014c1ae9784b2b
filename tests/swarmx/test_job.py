"""The variables of launchers: checked together, and read in one place only."""

from __future__ import annotations

import ast
import json

import pytest

from cerebras_tf import environment
from cerebras_tf.errors import ConfigError
from cerebras_tf.swarmx import job
from tests.messages import names
from tests.swarmx.ranks import ROOT, join_job


def test_a_process_without_a_launcher_is_a_job_with_one_wafer():
    assert job.current() == job.Job() and job.is_first()


def test_a_rank_of_a_running_job(monkeypatch, tmp_path):
    join_job(monkeypatch, tmp_path, wafers=3, rank=2)
    assert job.current() == job.Job(3, 2, str(tmp_path))


@pytest.mark.parametrize(
    "left",
    [
        {"RANK": "1"},
        {"RANK": "0", "WAFERS": "2"},
        {"RANK": "2", "WAFERS": "2", "JOB": "."},
        {"WAFERS": "2", "JOB": "."},
        {"JOB": "absent"},
        {"NUM_CSX": "8"},
        {"NUM_CSX": "3", "WAFERS": "2", "RANK": "0", "JOB": "."},
        {"NUM_CSX": "abc"},
        {"RANK": "x"},
        {"WAFERS": "-1"},
    ],
)
def test_variables_that_were_left_by_another_job_are_refused(left, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    join_job(monkeypatch, tmp_path)
    for name in (job.WAFERS_VARIABLE, job.RANK_VARIABLE, job.FOLDER_VARIABLE):
        monkeypatch.delenv(name)
    for name, value in left.items():
        monkeypatch.setenv(f"CEREBRAS_TF_{name}", value)
    with pytest.raises(ConfigError) as refused:
        job.rank()
    assert names(str(refused.value), *(f"CEREBRAS_TF_{name}" for name in left))


def test_a_job_whose_launcher_has_ended_is_refused(monkeypatch, tmp_path):
    (tmp_path / job.LOCK_FILE).touch()
    monkeypatch.setenv(job.FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError) as refused:
        job.wafers()
    assert names(str(refused.value), job.FOLDER_VARIABLE, str(tmp_path))


@pytest.mark.parametrize(
    "variables, first_on_host",
    [
        ({"PMI_RANK": "1", "MPI_LOCALRANKID": "0"}, True),
        ({"PMI_RANK": "1"}, False),
        ({"SLURM_PROCID": "1", "SLURM_LOCALID": "1"}, False),
        ({"SLURM_PROCID": "1", "PMI_RANK": "1", "SLURM_LOCALID": "0"}, True),
        ({"SLURM_PROCID": "1", "PMI_RANK": "0"}, None),
        ({"PMI_RANK": "2"}, None),
        ({}, None),
    ],
)
def test_the_ranks_of_mpi_and_slurm_must_agree(variables, first_on_host, monkeypatch, tmp_path):
    given = {"CEREBRAS_TF_WAFERS": "2", "CEREBRAS_TF_JOB": tmp_path, **variables}
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    if first_on_host is None:
        with pytest.raises(ConfigError):
            job.task()
    else:
        slurm = "SLURM_PROCID" in variables
        assert job.task() == job.Task(str(tmp_path), 2, 1, first_on_host, slurm)


CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "5",
        "[" * 100_000,
        '{"cluster": []}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"chief": 5}, "task": {"type": "chief", "index": 0}}',
        json.dumps({"cluster": CLUSTER}),
        json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 2}}),
        json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": "0"}}),
        json.dumps({"cluster": CLUSTER, "task": {"type": "ps", "index": 0}}),
        '{"task": {"type": "chief", "index": 0}}',
    ],
)
def test_a_cluster_that_tensorflow_could_not_run_is_refused(text, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ConfigError) as refused:
        job.cluster()
    assert names(str(refused.value), "TF_CONFIG", "Received: ")


def test_messages_between_ranks_are_signed(monkeypatch, tmp_path):
    join_job(monkeypatch, tmp_path)
    codes = {job.sign(b"text", rank, number) for rank in (0, 1) for number in (0, 1)}
    assert len(codes) == 4 and job.sign(b"text", 0, 0) in codes
    assert (tmp_path / job.SECRET_FILE).stat().st_mode & 0o777 == 0o600


LAUNCHERS = {
    name
    for name, item in vars(environment).items()
    if item in environment.SET_BY_LAUNCHERS and item not in (environment.PROGRAM,)
} - {"PYTHONHASHSEED"} | {"TF_CONFIG"}


def test_only_job_reads_what_launchers_set():
    """Others would believe variables of another job."""
    texts = {getattr(environment, name).name for name in LAUNCHERS}
    allowed = {"cerebras_tf/swarmx/job.py", "cerebras_tf/environment.py"}
    readers = set()
    for folder in ("cerebras_tf", "modelzoo", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                attribute = isinstance(node, ast.Attribute) and node.attr in LAUNCHERS
                imported = isinstance(node, ast.ImportFrom) and LAUNCHERS & {
                    alias.name for alias in node.names
                }
                text = isinstance(node, ast.Constant) and node.value in texts
                if attribute or imported or text:
                    readers.add(str(path.relative_to(ROOT)))
    assert readers <= allowed, sorted(readers - allowed)
