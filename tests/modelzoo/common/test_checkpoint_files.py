"""Files of checkpoints that are missing or too many are told by name."""

import re

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from cerebras_tf.errors import CheckpointError
from cerebras_tf.estimator.checkpoint_writer import write_checkpoint
from modelzoo.common.checkpoint_files import check_files

pytestmark = pytest.mark.tf


def test_the_index_says_which_data_files_there_must_be(tmp_path):
    prefix = str(tmp_path / "model.ckpt-5")
    write_checkpoint(prefix, [{"a": np.zeros(3)}, {"b": np.zeros(3)}])
    (tmp_path / "model.ckpt-5.data-00000-of-00007").touch()  # of another one of this name
    check_files(prefix)
    (tmp_path / "model.ckpt-5.data-00001-of-00002").unlink()
    wanted = re.escape(f"Received: no {prefix}.data-00001-of-00002. ")
    with pytest.raises(CheckpointError, match=wanted):
        check_files(prefix)
    index = tmp_path / "model.ckpt-5.index"
    index.write_bytes(index.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"5\.index: must be the whole index.*Restore"):
        check_files(prefix)
