"""Checks what is looked at before weights are laid on a disk."""

from __future__ import annotations

import pytest

from cerebras_tf.errors import StoreError
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.runtime.streaming_plan import check_disk

WEIGHTS = [Variable("w", TensorType("float32", (8,)))]


@pytest.mark.parametrize(
    ("name", "told"), [("a" * 300, "File name too long"), ("f/x", "no folder")]
)
def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_measured(tmp_path, name, told):
    (tmp_path / "f").write_text("")
    with pytest.raises(StoreError, match=told):
        check_disk(WEIGHTS, str(tmp_path / name))
    check_disk(WEIGHTS, str(tmp_path / "new" / "folder"))
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
