"""The checkpoints of a folder by their files, and which of them comes before a damaged one."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Optional

from cerebras_tf.bundle.index import data_paths
from cerebras_tf.errors import CheckpointError


def is_a_checkpoint(prefix: str) -> bool:
    """Whether a path such as `model_dir/model.ckpt-100` has its index and all data files."""
    try:
        shards = data_paths(prefix)
    except CheckpointError:
        return False
    return bool(shards) and all(map(os.path.isfile, shards))


def all_checkpoints(folder: str) -> list[str]:
    """The prefixes of the complete checkpoints in a folder, in the order of their steps."""
    prefixes = (str(index.with_suffix("")) for index in Path(folder).glob("*.index"))
    return sorted(filter(is_a_checkpoint, prefixes), key=lambda prefix: (step_of(prefix), prefix))


def checkpoint_before(prefix: str) -> Optional[str]:
    """The last complete checkpoint of an earlier step in the same folder, or None."""
    found = all_checkpoints(os.path.dirname(prefix) or ".")
    return next((p for p in reversed(found) if step_of(p) < step_of(prefix)), None)


def step_of(prefix: str) -> int:
    """The step that ends a checkpoint's name, -1 where none does."""
    step = re.search(r"-(\d+)$", prefix)
    return int(step.group(1)) if step else -1


def advice_on_damage(prefix: str) -> str:
    """What to do about a damaged checkpoint: a sentence."""
    before = checkpoint_before(prefix)
    if before is None:
        return "Restore the file; no earlier checkpoint is there."
    listed = os.path.join(os.path.dirname(prefix), "checkpoint")
    # TensorFlow looks up relative names beside the list.
    line = f'the line model_checkpoint_path: "{os.path.basename(before)}"'
    return f"Restore the file, or go on from the one before, {before}: make {listed} {line}"
