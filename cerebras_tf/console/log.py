"""Logs lines of progress, whether or not the script has set up logging."""

from __future__ import annotations

import logging
from typing import Any

import tensorflow as tf


def log_info(message: str, *arguments: Any) -> None:
    """Logs a line on the progress of a run, by TensorFlow's logger at level INFO.

    By default that logger shows only warnings. Lines of progress are shown nevertheless, unless the
    script sets the logger's level, sets up logging, or calls `logging.disable`.
    """
    logger = tf.get_logger()
    if logger.isEnabledFor(logging.INFO):
        logger.info(message, *arguments)
    elif not _is_set_up(logger):
        record = logger.makeRecord(
            logger.name, logging.INFO, __file__, 0, message, arguments, None, "log_info"
        )
        logger.handle(record)


def is_silent() -> bool:
    """Whether TensorFlow's own lines of progress are hidden because logging is not set up."""
    logger = tf.get_logger()
    return not logger.isEnabledFor(logging.INFO) and not _is_set_up(logger)


def _is_set_up(logger: logging.Logger) -> bool:
    """Whether the script has decided what the logger shows."""
    root = logging.getLogger()
    disabled = logger.manager.disable >= logging.INFO
    chosen = logger.level != logging.NOTSET or root.level != logging.WARNING
    return disabled or chosen or bool(root.handlers)
