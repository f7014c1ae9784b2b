"""Reads debug settings from a file. They belong to another software stack and have no effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from google.protobuf import json_format, text_format

from cerebras_tf.errors import ConfigError
from cerebras_tf.user_files import read_text

from .pb.workflow.appliance.common.common_config_pb2 import DebugArgs


def get_debug_args(debug_args_path: Optional[str] = None) -> Any:
    """Reads a DebugArgs message from a file in protocol buffer text format or JSON.

    Args:
      debug_args_path: the file; None for an empty message.

    Raises:
      ConfigError: the file is unreadable or has no such message.
    """
    if debug_args_path is None:
        return DebugArgs()
    try:
        text = read_text(debug_args_path)
        if text.lstrip().startswith("{"):
            return json_format.Parse(text, DebugArgs())
        return text_format.Parse(text, DebugArgs())
    except (OSError, UnicodeDecodeError, json_format.ParseError, text_format.ParseError) as error:
        raise ConfigError(
            f"{debug_args_path}: must be a readable file with a DebugArgs message as text or "
            f"JSON. Received: {error}. Correct the file or remove the option."
        ) from error


def write_debug_args(debug_args: Any, path: str) -> None:
    """Writes a DebugArgs message as text."""
    Path(path).write_text(text_format.MessageToString(debug_args), encoding="utf-8")


def update_debug_args_with_autogen_policy(debug_args: Any, policy: Any) -> None:
    """Accepts a policy of the original compiler."""
