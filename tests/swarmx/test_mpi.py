"""Means and copies between local ranks: right, repeatable, and of the bytes that are promised."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from cerebras_tf.errors import ConfigError
from cerebras_tf.swarmx import job, mpi
from cerebras_tf.swarmx.heartbeats import heartbeat_file
from cerebras_tf.swarmx.swarm import Alone, total
from tests.swarmx.ranks import needs_mpi, on_ranks

SIZES = (1, 5, 4099, 3_000_001)


def own(rank, size):
    return np.random.default_rng([rank, size]).standard_normal(size).astype(np.float32)


def everything():
    """What every rank does in the test: all kinds of exchange, of all sizes."""
    swarm = mpi.swarm()
    found = {}
    seen = []
    swarm.observe(lambda what, start, end, size: seen.append((what, end >= start, size)))
    for size in SIZES:
        for root in (None, 0, swarm.size - 1):
            before = swarm.traffic.sent_bytes
            array = own(swarm.rank, size)
            swarm.start_mean(array, root).wait()
            found["mean", size, root] = array
            found["sent", size, root] = swarm.traffic.sent_bytes - before
        for root in range(swarm.size):
            before = swarm.traffic.sent_bytes
            array = own(swarm.rank, size)
            swarm.start_copy(array, root).wait()
            found["copy", size, root] = np.array_equal(array, own(root, size))
            found["copied", size, root] = swarm.traffic.sent_bytes - before
    found["total"] = total(swarm, np.array([swarm.rank, 1], np.int64)).tolist()
    found["scalar"] = total(swarm, np.array(swarm.rank + 0.5)).shape
    found["seen"] = seen
    found["objects"] = swarm.objects({"rank": swarm.rank})
    return found


@needs_mpi()
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_get_means_and_copies(size, tmp_path):
    found = again = on_ranks(size, everything, tmp_path)
    if size == 3:  # sums of two have but one order
        again = on_ranks(size, everything, tmp_path)
    for length in SIZES:
        wanted = np.mean([own(rank, length).astype(np.float64) for rank in range(size)], axis=0)
        for root in (None, 0, size - 1):
            getting = range(size) if root is None else [root]
            for rank in getting:
                mean = found[rank]["mean", length, root]
                np.testing.assert_allclose(mean, wanted, rtol=1e-6, atol=1e-6)
                assert np.array_equal(mean, again[rank]["mean", length, root])
            if root is None:
                assert all(
                    np.array_equal(found[0]["mean", length, None], f["mean", length, None])
                    for f in found
                )
        for root in range(size):
            assert all(f["copy", length, root] for f in found)
            assert sum(f["copied", length, root] for f in found) == (size - 1) * 4 * length
        sent = sum(f["sent", length, None] for f in found)
        assert sent == 2 * (size - 1) * 4 * length
    for f in found:
        assert f["seen"].count(("mean for all", True, 4 * SIZES[-1])) == 1
        assert f["seen"].count(("copy of 0", True, 4 * SIZES[-1])) == 1
    assert all(f["scalar"] == () for f in found)
    assert all(f["total"] == [sum(range(size)), size] for f in found)
    assert all(f["objects"] == [{"rank": rank} for rank in range(size)] for f in found)


def only_one():
    return type(mpi.swarm()).__name__


@needs_mpi()
def test_a_world_of_another_size_is_refused(tmp_path, monkeypatch):
    with pytest.raises(AssertionError, match=r"MPI must have 2 ranks. Received: a world of 1"):
        on_ranks_of_other_size(tmp_path, monkeypatch)


def on_ranks_of_other_size(folder, monkeypatch):
    """One rank is started where the job is told of two."""
    from tests.swarmx import ranks

    run = ranks.subprocess.run

    def fewer(command, **options):
        heartbeat_file(options["env"][job.FOLDER_VARIABLE], 1).touch()
        return run([command[0], "-n", "1", *command[3:]], **options)

    monkeypatch.setattr(ranks.subprocess, "run", fewer)
    return on_ranks(2, only_one, folder)


@pytest.mark.parametrize("level, is_enough", [(0, False), (2, False), (3, True)])
def test_an_mpi_that_only_one_thread_may_call_is_refused(level, is_enough):
    module = SimpleNamespace(Query_thread=lambda: level, THREAD_MULTIPLE=3)
    refused = pytest.raises(ConfigError, match=f"level {level} of 3. Unset MPI4PY_RC_THREADS")
    with nullcontext() if is_enough else refused:
        mpi.check_threads(module)


def test_one_wafer_needs_no_mpi():
    swarm = Alone()
    array = own(0, 7)
    swarm.start_mean(array).wait()
    swarm.start_copy(array, 0).wait()
    assert np.array_equal(array, own(0, 7))
    assert np.array_equal(total(swarm, array), array)
    assert swarm.objects("x") == ["x"]
