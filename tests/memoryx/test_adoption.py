"""Values that a store takes from files of a checkpoint, after it has written others."""

from __future__ import annotations

import numpy as np

from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.memoryx.buffers import ALIGNMENT_BYTES
from cerebras_tf.memoryx.disk import FileDisk
from cerebras_tf.memoryx.file_store import FileStore
from cerebras_tf.memoryx.store import write
from tests.machines import content_of

PAGE = ALIGNMENT_BYTES


def test_zeros_are_written_over_what_was_there_before_an_adoption(tmp_path):
    type = TensorType("float32", (PAGE // 4,))
    store = FileStore([Variable(name, type) for name in "ab"], FileDisk(str(tmp_path), PAGE))

    def set_all(number):
        for name in "ab":
            write(store, name, np.full(type.shape, number, np.float32))

    set_all(1)
    entry = store.linkable_regions()["a"]
    set_all(2)
    assert store.link_source("a", entry)
    assert (content_of(store, "a") == 1).all()
    write(store, "a", np.zeros(type.shape, np.float32))
    content_of(store, "b")  # which takes its place in memory
    assert not content_of(store, "a").any()
    store.close()
