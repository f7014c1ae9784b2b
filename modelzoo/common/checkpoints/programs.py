"""The other programs a checkpoint can come from or go to: what lies in their folders.

A reader has `config`, `config_path`, `shapes`, `read(name)`, `where(name)` and `global_step`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from cerebras_tf.errors import ConfigError
from modelzoo.common.checkpoints import hugging_face
from modelzoo.common.checkpoints.bert import BERT
from modelzoo.common.checkpoints.google_bert import GOOGLE_BERT
from modelzoo.common.checkpoints.gpt2 import GPT2
from modelzoo.common.checkpoints.gpt_neox import GPT_NEOX
from modelzoo.common.checkpoints.gptj import GPTJ, is_neox
from modelzoo.common.checkpoints.tensorflow_checkpoint import (
    STATE,
    TensorFlowReader,
    write_tensorflow,
)

_HUGGING_FACE = {item.name: item for item in (GPT2, GPTJ, GPT_NEOX, BERT)}
_BERT_CONFIG = "bert_config.json"
_BERT_NAME = "bert_model.ckpt"


@dataclass(frozen=True)
class Program:
    """How another program keeps its models.

    Attributes:
        open: function of a path, returns a reader.
        architecture_of: function of a reader, returns the Architecture.
        architecture_for: function of our parameters and their path, returns the Architecture.
        write: function of a folder, configuration, shapes, tensors, global step, type and largest
            size of a file; see `hugging_face.write_hugging_face`.
        written: file name patterns of what `write` writes.
    """

    open: Callable
    architecture_of: Callable
    architecture_for: Callable
    write: Callable
    written: tuple[str, ...]


class GoogleBertReader(TensorFlowReader):
    """A checkpoint of google-research/bert, with its bert_config.json beside it."""

    def __init__(self, path):
        super().__init__(path)
        self.config_path = str(self.folder / _BERT_CONFIG)
        self.config = hugging_face.read_json(self.config_path)


def architecture_of(reader):
    """Returns the Architecture of a folder of Hugging Face's.

    Raises:
        ConfigError: it is not known here.
    """
    name = reader.config.get("model_type")
    if name not in _HUGGING_FACE:
        raise ConfigError(
            f"{reader.config_path}: model_type must be one of {', '.join(_HUGGING_FACE)}. "
            f"Received: {name!r}. Other models cannot be converted."
        )
    return _HUGGING_FACE[name]


def _architecture_for(params, where):
    rooms = {item.room for item in _HUGGING_FACE.values()}
    if params.model_name not in rooms:
        raise ConfigError(
            f"{where}: model_name must be one of {', '.join(sorted(rooms))}. Received: "
            f"{params.model_name!r}. Other models cannot be converted."
        )
    if params.model_name == GPTJ.room:
        return GPT_NEOX if is_neox(params) else GPTJ
    return next(item for item in _HUGGING_FACE.values() if item.room == params.model_name)


def _google_bert_for(params, where):
    if params.model_name != GOOGLE_BERT.room:
        raise ConfigError(
            f"{where}: model_name must be {GOOGLE_BERT.room}. Received: {params.model_name!r}. "
            "Google's program has no other model."
        )
    return GOOGLE_BERT


def _write_hugging_face(folder, config, shapes, tensors, global_step, dtype, max_shard_bytes):
    hugging_face.write_hugging_face(folder, config, shapes, tensors, dtype, max_shard_bytes)


def _write_google_bert(folder, config, shapes, tensors, global_step, dtype, max_shard_bytes):
    if dtype != "float32":
        raise ConfigError(
            f"--dtype: must be float32 in a TensorFlow checkpoint. Received: {dtype}. Leave it out."
        )
    write_tensorflow(folder, _BERT_NAME, tensors, global_step)
    (folder / _BERT_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


PROGRAMS = {
    "hugging_face": Program(
        hugging_face.HuggingFaceReader,
        architecture_of,
        _architecture_for,
        _write_hugging_face,
        hugging_face.WRITTEN,
    ),
    "google_bert": Program(
        GoogleBertReader,
        lambda reader: GOOGLE_BERT,
        _google_bert_for,
        _write_google_bert,
        (f"{_BERT_NAME}.*", _BERT_CONFIG, STATE),
    ),
}
