"""Which checkpoint comes before a damaged one, and how errors name it."""

from pathlib import Path

import numpy as np
import pytest

from cerebras_tf.bundle import links
from cerebras_tf.bundle.index import Entry, all_checkpoints, checkpoint_before, read_index
from cerebras_tf.errors import CheckpointError
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.memoryx.buffers import ALIGNMENT_BYTES
from cerebras_tf.memoryx.disk import FileDisk
from cerebras_tf.memoryx.file_store import FileStore
from cerebras_tf.memoryx.store import write

PAGE = ALIGNMENT_BYTES
SPECS = [Variable("a", TensorType("float32", (PAGE // 4,)), True)]


def test_the_one_before_is_whole_and_of_the_next_lower_step(tmp_path):
    content = tmp_path / "content"
    content.write_bytes(bytes(4))
    entry = Entry("float32", (1,), str(content), 0, 4, 0)
    prefixes = {step: str(tmp_path / f"model.ckpt-{step}") for step in (2, 9, 10, 11)}
    for prefix in prefixes.values():
        links.link_checkpoint(prefix, {"a": entry})
    (tmp_path / "model.ckpt-10.data-00000-of-00001").unlink()
    assert all_checkpoints(str(tmp_path)) == [prefixes[step] for step in (2, 9, 11)]
    assert checkpoint_before(prefixes[11]) == prefixes[9]
    assert checkpoint_before(prefixes[2]) is None


@pytest.mark.parametrize("is_first", [True, False])
def test_of_a_damaged_record_the_checkpoint_before_is_told(tmp_path, is_first):
    first, second = (FileStore(SPECS, FileDisk(str(tmp_path / "store"), PAGE)) for _ in range(2))
    write(first, "a", np.arange(PAGE // 4, dtype=np.float32))
    entries = first.linkable_regions()
    prefixes = [str(tmp_path / f"model.ckpt-{step}") for step in (1, 2)]
    for prefix in prefixes[is_first:]:
        links.link_checkpoint(prefix, entries)
    damaged = Path(f"{prefixes[1]}.data-00000-of-00001")
    content = damaged.read_bytes()
    damaged.unlink()  # a link to the others' file
    damaged.write_bytes(content[:-PAGE] + bytes([content[-PAGE] ^ 1]) + content[1 - PAGE :])
    assert second.link_source("a", read_index(prefixes[1])["a"])
    with pytest.raises(CheckpointError) as error:
        second.acquire(["a"])
    advice = (
        "no earlier checkpoint is there."
        if is_first
        else f'{prefixes[0]}: make {tmp_path}/checkpoint the line model_checkpoint_path: "'
    )
    assert advice in str(error.value)
    for store in (first, second):
        store.close()
