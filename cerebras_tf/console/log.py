"""Logs lines of progress, whether or not the script has set up logging."""

from __future__ import annotations

import logging
import sys
from typing import Any

from cerebras_tf.user_files import printable


class _Stderr(logging.StreamHandler):
    """Writes lines on stderr, unless the script has set up logging."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr
            super().emit(record)


def get_logger() -> logging.Logger:
    """TensorFlow's logger if TensorFlow is imported, whose level scripts set; else our own."""
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is not None and hasattr(tensorflow, "get_logger"):
        logger: logging.Logger = tensorflow.get_logger()
    else:
        logger = logging.getLogger("cerebras_tf")
        if not logger.handlers:
            logger.addHandler(_Stderr())
    logger.addFilter(_escape)  # once
    return logger


def _escape(record: logging.LogRecord) -> bool:
    """Escapes control characters, which names in files may contain."""
    try:
        text = record.getMessage()
    except (TypeError, ValueError):  # which the handler reports
        return True
    if printable(text) != text:
        record.msg, record.args = printable(text), None
    return True


def log_info(message: str, *arguments: Any) -> None:
    """Logs a line on the progress of a run, at level INFO; see get_logger.

    By default that logger shows only warnings. Lines of progress are shown nevertheless, unless the
    script sets the logger's level, sets up logging, or calls `logging.disable`.
    """
    logger = get_logger()
    if logger.isEnabledFor(logging.INFO):
        logger.info(message, *arguments)
    elif not _is_set_up(logger):
        record = logger.makeRecord(
            logger.name, logging.INFO, __file__, 0, message, arguments, None, "log_info"
        )
        logger.handle(record)


def is_silent() -> bool:
    """Whether TensorFlow's own lines of progress are hidden because logging is not set up."""
    logger = get_logger()
    return not logger.isEnabledFor(logging.INFO) and not _is_set_up(logger)


def _is_set_up(logger: logging.Logger) -> bool:
    """Whether the script has decided what the logger shows."""
    root = logging.getLogger()
    disabled = logger.manager.disable >= logging.INFO
    chosen = logger.level != logging.NOTSET or root.level != logging.WARNING
    return disabled or chosen or bool(root.handlers)
