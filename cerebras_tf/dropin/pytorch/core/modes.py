"""Modes of a run."""

from __future__ import annotations

TRAIN, EVAL, TRAIN_AND_EVAL, INFERENCE = "train", "eval", "train_and_eval", "inference"
EVAL_ALL = "eval_all"


def get_modes() -> tuple[str, ...]:
    """All modes."""
    return TRAIN, EVAL, TRAIN_AND_EVAL, INFERENCE, EVAL_ALL


def is_valid(mode: str) -> bool:
    """Whether a mode is one of them."""
    return mode in get_modes()
