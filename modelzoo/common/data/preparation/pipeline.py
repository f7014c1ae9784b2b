"""Runs a data preparation: units of work over processes, progress marks, files and a manifest."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from cerebras_tf.errors import CapacityError, DataError
from modelzoo.common.data.preparation import documents, records

POLL_S = 0.1  # time between two updates of the progress bar while worker processes work


@dataclass
class UnitOutput:
    """Where the work on one unit puts its records.

    Attributes:
        advance: called with the amount of input done since its last call.
    """

    folder: Path
    index: int
    advance: Callable[[int], Any]
    writers: list[records.RecordWriter]

    def writer(self, name="examples", records_per_file=None, kind=records.RecordWriter):
        """Opens a writer of files ``{name}-{unit}-{number}``; `prepare` closes it.

        Args:
            name: beginning of the names; two writers of a unit need two names.
            records_per_file: records after which another file is begun; None for a single file.
            kind: RecordWriter, or a class derived from it.

        Returns:
            The writer.
        """
        prefix = f"{name}-{self.index:05d}"
        for left_over in self.folder.glob(f".{prefix}-*.partial"):
            left_over.unlink()
        self.writers.append(kind(self.folder, prefix, records_per_file))
        return self.writers[-1]


class InputProgress:
    """Reports input once the work on it is done, not when it is read.

    Args:
        advance: called with the number of bytes that are done.
    """

    def __init__(self, advance):
        self._advance = advance
        self._waiting = 0

    def read(self, size):
        """Adds bytes that were read."""
        self._waiting += size

    def finish(self, share=1.0):
        """Reports a share of the bytes that were read and are not reported yet."""
        done = int(self._waiting * min(share, 1.0))
        if done:
            self._waiting -= done
            self._advance(done)


def prepare(
    units, work, output_dir, settings, processes=1, on_progress=lambda amount: None, facts=None
):
    """Calls `work` for each unit and writes its records to `output_dir`, with a manifest.

    The same call continues where an earlier one was stopped, and only returns the manifest once all
    is done. Each file appears whole or not at all.

    Args:
        units: what `work` takes, one a unit; small, picklable, and the same in every run.
        work: ``work(unit, output)`` with a UnitOutput; returns a dictionary of counts (integers).
            It must depend on nothing but the unit and the settings, and be picklable: a function of
            a module, or a ``functools.partial`` of one.
        settings: what the records depend on, JSON; another run in the folder must have the same.
        facts: more for the manifest that follows from the settings, such as vocab_size.

    Returns:
        The manifest: settings, facts, `counts` (sums over the units, with `records`), `files` with
        their records, bytes and sha256.
    """
    with records.in_use(output_dir):
        return _prepare(units, work, output_dir, settings, processes, on_progress, facts)


def prepare_files(files, unit_bytes, work, output_dir, settings, processes, on_progress, facts):
    """Prepares files of documents in units of about `unit_bytes`; see `prepare`.

    Args:
        work: ``work(parts, output, settings)``, see documents.plan_units.
        settings: dataclass, with `vocab_file` and maybe `encoder_file`.
    """
    return prepare(
        documents.plan_units(files, unit_bytes),
        functools.partial(work, settings=settings),
        output_dir,
        documents.describe_settings(settings, files),
        processes,
        on_progress,
        facts,
    )


def _prepare(units, work, output_dir, settings, processes, on_progress, facts):
    progress = records.Progress(output_dir, settings)
    finished = progress.manifest()
    if finished:
        progress.finish({key: value for key, value in finished.items() if key != "settings"})
        return progress.manifest()
    waiting = [index for index in range(len(units)) if progress.done(index) is None]
    processes = min(processes, len(waiting))
    if processes <= 1:
        for index in waiting:
            _run_unit(work, units[index], progress, index, on_progress)
    else:
        jobs = [(work, units[index], progress, index) for index in waiting]
        _run_in_processes(jobs, processes, on_progress)
    results = [progress.done(index) for index in range(len(units))]
    if None in results:
        raise DataError(
            f"{progress.folder}: files must not change during the preparation. Received: a missing "
            "or truncated file. Run the same command again."
        )
    files = [entry for result in results for entry in result["files"]]
    counts: dict[str, int] = {}
    for result in results:
        for key, value in result["counts"].items():
            counts[key] = counts.get(key, 0) + value
    counts["records"] = sum(entry["records"] for entry in files)
    progress.finish({**(facts or {}), "counts": counts, "files": files})
    return progress.manifest()


def _run_unit(work, unit, progress, index, advance):
    output = UnitOutput(progress.folder, index, advance, [])
    counts = work(unit, output)
    for writer in output.writers:
        writer.close()
    files = [entry for writer in output.writers for entry in writer.files]
    progress.mark(index, {"counts": counts, "files": files})


_amounts: Any = None  # queue from a worker process to its parent


def _start_worker(amounts):
    global _amounts
    _amounts = amounts
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
    """Ends this process once its parent is gone, killed or not."""
    parent: Any = multiprocessing.parent_process()
    parent.join()
    os._exit(1)


def _run_in_worker(job):
    work, unit, progress, index = job
    _run_unit(work, unit, progress, index, _amounts.put)


def _run_in_processes(jobs, processes, on_progress):
    # Not forked: TensorFlow's threads do not survive that.
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    amounts = context.Queue()
    executor = concurrent.futures.ProcessPoolExecutor(processes, context, _start_worker, (amounts,))
    try:
        # A worker does not import from the current folder.
        with mock.patch.dict(os.environ, {"PYTHONSAFEPATH": "1"}):
            waiting = {executor.submit(_run_in_worker, job) for job in jobs}
        while waiting:
            ended, waiting = concurrent.futures.wait(
                waiting, POLL_S, concurrent.futures.FIRST_EXCEPTION
            )
            _drain(amounts, on_progress)
            for future in ended:
                future.result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise CapacityError(
            f"{processes} worker processes: must run until the end. Received: one was killed, "
            "probably because memory ran out. Use a smaller --processes; the same command "
            "continues where it stopped."
        ) from error
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)
        _drain(amounts, on_progress)


def _drain(amounts, on_progress):
    with contextlib.suppress(queue.Empty):
        while True:
            on_progress(amounts.get_nowait())
