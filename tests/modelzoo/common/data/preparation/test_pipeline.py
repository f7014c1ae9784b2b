"""Tests of pipeline.py: every unit once, however often the preparation is stopped."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cerebras_tf.errors import CapacityError, ConfigError, DataError
from modelzoo.common.data.preparation import pipeline, records
from tests.messages import raises

ROOT = Path(__file__).resolve().parents[5]
UNITS = [3, 5, 2]


class LineWriter(records.RecordWriter):
    """Writes lines of text, so that these tests and their processes need no TensorFlow."""

    def open(self, path):
        return open(path, "wb")

    def append(self, file, record):
        file.write(record + b"\n")


def count_down(unit, output, fail_at=None, log=None):
    """Writes the numbers of a unit, and says so in `log`."""
    if log:
        with open(log, "a") as file:
            file.write(f"{output.index}\n")
    if unit == fail_at:
        raise DataError("x.txt:7: must be mended.")
    writer = output.writer("numbers", 2, LineWriter)
    for number in range(unit):
        writer.write_bytes(str(number).encode())
        output.advance(1)
    return {"rows": unit}


def end_process(unit, output):
    os.kill(os.getpid(), signal.SIGKILL)


def contents(folder):
    return {p.name: p.read_bytes() for p in Path(folder).iterdir() if p.is_file()}


def test_manifest_sums_counts_and_lists_files_in_order(tmp_path):
    seen = []
    manifest = pipeline.prepare(
        UNITS, count_down, tmp_path, {"a": 1}, on_progress=seen.append, facts={"vocab_size": 9}
    )
    assert manifest["counts"] == {"rows": 10, "records": 10} and sum(seen) == 10
    assert manifest["settings"] == {"a": 1} and manifest["vocab_size"] == 9
    assert [entry["records"] for entry in manifest["files"]] == [2, 1, 2, 2, 1, 2]
    assert manifest["files"][0]["file"].startswith("numbers-00000-00000")
    assert json.loads((tmp_path / "manifest.json").read_text()) == manifest


def test_input_is_reported_once_its_work_is_done():
    seen = []
    progress = pipeline.InputProgress(seen.append)
    progress.read(60)
    progress.read(41)
    assert not seen
    for share in (0.25, 0.5, 1.5):
        progress.finish(share)
    progress.finish()
    assert seen == [25, 38, 38]


def test_processes_make_the_same_files_as_one(tmp_path):
    seen = []
    pipeline.prepare(UNITS, count_down, tmp_path / "one", {})
    pipeline.prepare(UNITS, count_down, tmp_path / "two", {}, 2, on_progress=seen.append)
    assert contents(tmp_path / "one") == contents(tmp_path / "two") and sum(seen) == 10
    assert "PYTHONSAFEPATH" not in os.environ


@pytest.mark.parametrize("processes", [1, 2])
def test_error_of_a_unit_is_raised_and_the_others_are_made_next_time(tmp_path, processes):
    log, out = tmp_path / "log", tmp_path / "out"
    failing = functools.partial(count_down, fail_at=2, log=log)
    with pytest.raises(DataError, match="x.txt:7"):
        pipeline.prepare([*UNITS[:2], 2], failing, out, {}, processes)
    assert not (out / "manifest.json").exists()
    before = log.read_text().split()
    pipeline.prepare(UNITS, functools.partial(count_down, log=log), out, {})
    if processes == 1:
        assert log.read_text().split() == [*before, "2"] == ["0", "1", "2", "2"]
    pipeline.prepare(UNITS, count_down, tmp_path / "whole", {})
    assert contents(out) == contents(tmp_path / "whole")


def test_killed_worker_is_named_with_a_fix(tmp_path):
    with raises(CapacityError, "killed", "--processes"):
        pipeline.prepare([1, 2], end_process, tmp_path, {}, 2)


def test_preparation_killed_between_files_resumes_and_ends_alike(tmp_path):
    program = f"""
        import os, signal, sys
        sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
        import test_pipeline
        from modelzoo.common.data.preparation import pipeline

        def work(unit, output):
            if output.index == 1:
                writer = output.writer("numbers", 2, test_pipeline.LineWriter)
                for number in range(3):
                    writer.write_bytes(str(number).encode())
                os.kill(os.getpid(), signal.SIGKILL)
            return test_pipeline.count_down(unit, output)

        pipeline.prepare(test_pipeline.UNITS, work, sys.argv[1], {{}})
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "out")]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGKILL
    left = sorted(path.name for path in (tmp_path / "out").glob(".numbers*"))
    assert left == [".numbers-00001-00001.partial"]
    pipeline.prepare(UNITS, count_down, tmp_path / "out", {})
    pipeline.prepare(UNITS, count_down, tmp_path / "whole", {})
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert not (tmp_path / "out" / records.PROGRESS).exists()


def test_finished_preparation_is_not_done_again(tmp_path):
    first = pipeline.prepare(UNITS, count_down, tmp_path, {})
    assert pipeline.prepare(UNITS, end_process, tmp_path, {}) == first


def test_workers_end_with_their_killed_parent(tmp_path):
    program = f"""
        import os, sys
        sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
        import test_pipeline
        from modelzoo.common.data.preparation import pipeline

        if __name__ == "__main__":
            pipeline.prepare([1, 2], test_pipeline.kill_parent_and_wait, sys.argv[1], {{}}, 2)
    """
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    # The pipe ends only when the workers, which hold it too, have ended.
    result = subprocess.run(
        [sys.executable, str(path), str(tmp_path / "out")], stdout=subprocess.PIPE, timeout=60
    )
    assert result.returncode == -signal.SIGKILL


def kill_parent_and_wait(unit, output):
    """Ends the parent process, then waits for the end of its own."""
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()


@pytest.mark.parametrize("change", ["removed", "cut"])
def test_files_that_are_not_whole_are_made_again_or_refused(tmp_path, change):
    def damage():
        path = tmp_path / "numbers-00000-00001.tfrecords"
        path.unlink() if change == "removed" else path.write_bytes(b"1")

    with pytest.raises(DataError, match="x.txt:7"):
        pipeline.prepare(UNITS, functools.partial(count_down, fail_at=2), tmp_path, {"a": 1})
    damage()
    pipeline.prepare(UNITS, count_down, tmp_path, {"a": 1})
    whole = contents(tmp_path)
    assert whole["numbers-00000-00001.tfrecords"] == b"2\n"
    damage()
    with raises(DataError, "numbers-00000-00001.tfrecords"):
        pipeline.prepare(UNITS, count_down, tmp_path, {"a": 1})
    (tmp_path / "manifest.json").unlink()
    pipeline.prepare(UNITS, count_down, tmp_path, {"a": 1})
    assert contents(tmp_path) == whole


def test_a_run_that_made_nothing_restarts_with_fixed_input(tmp_path):
    work = functools.partial(count_down, fail_at=3)
    with pytest.raises(DataError, match="must be mended"):
        pipeline.prepare(UNITS, work, tmp_path, {"inputs": ["damaged"]})
    (tmp_path / ".numbers-00000-00000.partial").write_text("0\n")
    manifest = pipeline.prepare(UNITS, count_down, tmp_path, {"inputs": ["mended"]})
    assert manifest["settings"] == {"inputs": ["mended"]} and manifest["counts"]["rows"] == 10
    assert not list(tmp_path.glob(".*"))


def test_a_run_that_made_records_refuses_other_input(tmp_path):
    work = functools.partial(count_down, fail_at=2)
    with pytest.raises(DataError, match="must be mended"):
        pipeline.prepare(UNITS, work, tmp_path, {"inputs": ["damaged"]})
    with raises(ConfigError, "another inputs"):
        pipeline.prepare(UNITS, count_down, tmp_path, {"inputs": ["mended"]})
