"""Options of the wafer are told where the host runs, once for each set of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("tensorflow")

from cerebras_tf.estimator import host_options
from cerebras_tf.estimator.run_config import CSRunConfig
from tests.estimator.regression import build, dataset

pytestmark = pytest.mark.tf


@pytest.fixture(autouse=True)
def nothing_told():
    host_options._warn_once.cache_clear()


def test_options_of_the_wafer_are_told_where_the_host_runs(tmp_path, caplog):
    options = {"memoryx_dir": tmp_path / "store", "wafer_memory_gb": 1, "micro_batches": 2}
    with caplog.at_level("WARNING", "tensorflow"):
        made = build(tmp_path / "host", use_cs=False, **options)
        made.train(dataset, max_steps=1)
    assert caplog.text.count("memoryx_dir, wafer_memory_gb, micro_batches: no effect on the") == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"use_vsl": True, "num_threads": 2}, "num_threads, use_vsl: no effect"),
        ({"precision": "bfloat16"}, "precision: no effect"),
        ({"multireplica": True}, "multireplica: no effect"),
        ({"cs_config": SimpleNamespace(use_cbfloat16=True)}, "use_cbfloat16: no effect"),
        ({"use_vsl": False, "precision": "float32", "micro_batches": 1}, ""),
    ],
)
def test_what_says_something_is_told(options, told, caplog):
    with caplog.at_level("WARNING", "tensorflow"):
        host_options.tell_of_host(CSRunConfig(**options))
    assert told in caplog.text and ("no effect" in caplog.text) == bool(told)
