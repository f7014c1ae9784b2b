"""Reads debugging settings from a file; applies none, for they are another stack's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format

from cerebras_tf.errors import ConfigError

from .pb.workflow.appliance.common.common_config_pb2 import DebugArgs


def get_debug_args(debug_args_path: str) -> Any:
    """Reads a DebugArgs message from a file in protocol buffers' text form or JSON.

    Raises:
      ConfigError: the file cannot be read or does not hold such a message.
    """
    try:
        text = Path(debug_args_path).read_text(encoding="utf-8")
        if text.lstrip().startswith("{"):
            return json_format.Parse(text, DebugArgs())
        return text_format.Parse(text, DebugArgs())
    except (OSError, UnicodeDecodeError, json_format.ParseError, text_format.ParseError) as error:
        raise ConfigError(
            f"{debug_args_path}: must be a readable file with a DebugArgs message as text or "
            f"JSON. Received: {error}. Correct the file or leave the option out."
        ) from error
