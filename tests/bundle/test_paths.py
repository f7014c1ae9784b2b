"""Paths by which TensorFlow finds no checkpoint are refused, and only those."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.bundle.paths import check_checkpoint_path
from cerebras_tf.errors import ConfigError
from tests.messages import names

REFUSED = ["runs[1]", "run [v2]", 'q"t*[x]?', "back\\slash", "runs[1]/model.ckpt-3"]
TAKEN = ["runs", "a?b", "a*b", "a b", "läufe", "a]b", "{a}", "$a", "~"]


@pytest.mark.parametrize("path", REFUSED)
def test_a_path_with_letters_of_patterns_is_refused(path):
    with pytest.raises(ConfigError) as caught:
        check_checkpoint_path(path, "model_dir")
    assert names(str(caught.value), "model_dir: ", f"Received: {path}, with ")


@pytest.mark.parametrize("path", ["gs://bucket/run", "http://x", "file:///tmp/x"])
def test_urls_are_refused(path):
    with pytest.raises(ConfigError) as caught:
        check_checkpoint_path(path, "model_dir")
    assert names(str(caught.value), "model_dir: ", f"Received: {path}, a URL")


@pytest.mark.parametrize("path", TAKEN)
def test_other_paths_are_taken(path):
    check_checkpoint_path(path, "model_dir")


@pytest.mark.tf
@pytest.mark.parametrize("path", ["a[1]", "a\\b", *TAKEN])
def test_tensorflow_finds_checkpoints_by_the_paths_that_are_taken_alone(tmp_path, path):
    tf = pytest.importorskip("tensorflow").compat.v1
    from cerebras_tf.checkpoints.writer import write_checkpoint

    (tmp_path / path).mkdir()
    prefix = str(tmp_path / path / "model.ckpt-1")
    write_checkpoint(prefix, [{"global_step": np.int64(1)}])
    try:
        tf.train.NewCheckpointReader(prefix)
        is_found = True
    except (tf.OpError, ValueError):
        is_found = False
    assert is_found == (path in TAKEN)
