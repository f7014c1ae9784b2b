"""The other programs a checkpoint can come from or go to: the files in their folders.

A reader has `config`, `config_path`, `shapes`, `read(name)`, `where(name)` and `global_step`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cerebras_tf.errors import CheckpointError, ConfigError
from modelzoo.common.convert import hugging_face
from modelzoo.common.convert.bert import BERT, GOOGLE_BERT, ROBERTA
from modelzoo.common.convert.bert_fine_tuning import (
    BERT_CLASSIFIER,
    BERT_QUESTION_ANSWERING,
    BERT_TOKEN_CLASSIFIER,
    ROBERTA_CLASSIFIER,
    ROBERTA_QUESTION_ANSWERING,
    ROBERTA_TOKEN_CLASSIFIER,
)
from modelzoo.common.convert.gpt import GPT2, GPT_NEOX, GPTJ
from modelzoo.common.convert.tensorflow_checkpoint import STATE, TensorFlowReader, write_tensorflow

# Where no class is named, the first whose tensors are there.
_HUGGING_FACE = (
    GPT2,
    GPTJ,
    GPT_NEOX,
    BERT_QUESTION_ANSWERING,
    BERT_CLASSIFIER,
    BERT_TOKEN_CLASSIFIER,
    BERT,
    ROBERTA_QUESTION_ANSWERING,
    ROBERTA_CLASSIFIER,
    ROBERTA_TOKEN_CLASSIFIER,
    ROBERTA,
)
_BERT_CONFIG = "bert_config.json"
_BERT_NAME = "bert_model.ckpt"


@dataclass(frozen=True)
class Program:
    """How another program keeps its models.

    Attributes:
        name: for errors.
        architectures: those that it has; where no class is named, the first whose tensors fit.
        open: function of a path, returns a reader.
        architecture_of: function of a reader, returns the Architecture.
        write: function of a folder, configuration, shapes, tensors, global step, type and largest
            size of a file; see `hugging_face.write_hugging_face`.
        written: file name patterns of what `write` writes.
        carried: names of files that are copied next to a checkpoint of ours and back.
        completed: function of a configuration made of our parameters and of the folder of carried
            files, returns the whole configuration.
        check: function of the type and largest size that `write` will get; raises a ConfigError
            for those that it cannot write.
    """

    name: str
    architectures: tuple
    open: Callable
    architecture_of: Callable
    write: Callable
    written: tuple[str, ...]
    carried: tuple[str, ...] = ()
    completed: Callable = lambda config, folder: config
    check: Callable = lambda dtype, max_shard_bytes: None

    def architecture_for(self, params, where):
        """Returns the Architecture of our parameters; `where` is their path."""
        known = [item for item in self.architectures if item.model_name == params.model_name]
        if not known:
            names = sorted({item.model_name for item in self.architectures})
            raise ConfigError(
                f"{where}: model_name must be {' or '.join(names)}. Received: "
                f"{params.model_name!r}. Other models cannot be converted to {self.name}."
            )
        return next(item for item in known if item.is_ours(params))


class GoogleBertReader(TensorFlowReader):
    """A checkpoint of google-research/bert, with its bert_config.json next to it."""

    def __init__(self, path):
        super().__init__(path)
        self.config_path = str(self.folder / _BERT_CONFIG)
        self.config = hugging_face.read_json(self.config_path)


def open_hugging_face(folder):
    """Opens a folder of Hugging Face's; see `hugging_face.HuggingFaceReader`."""
    path = Path(folder)
    parent = path if path.is_dir() else path.parent
    if (parent / _BERT_CONFIG).exists() and not (path / hugging_face.CONFIG).exists():
        raise CheckpointError(
            f"{folder}: must be a folder with {hugging_face.CONFIG}. Received: {_BERT_CONFIG} , "
            "which is of google-research/bert. Add --program google_bert."
        )
    return hugging_face.HuggingFaceReader(folder)


def architecture_of(reader):
    """Returns the Architecture of a folder of Hugging Face's."""
    config, path = reader.config, reader.config_path
    kinds = tuple(dict.fromkeys(item.name for item in _HUGGING_FACE))
    known = [item for item in _HUGGING_FACE if item.name == config.get("model_type")]
    if not known:
        raise ConfigError(
            f"{path}: model_type must be one of {', '.join(kinds)}. Received: "
            f"{config.get('model_type')!r}. The zoo has no such model."
        )
    listed = config.get("architectures") or [None]
    named = listed[0] if isinstance(listed, list) else listed
    if named is None:
        return next(item for item in known if item.is_theirs(reader.shapes))
    for item in known:
        if named in item.classes:
            return item
    classes = [name for item in known for name in item.classes]
    raise ConfigError(
        f"{path}: architectures must be one of {', '.join(classes)}. Received: {named!r}. The "
        "zoo's models have no such head."
    )


def _check_google_bert(dtype, max_shard_bytes):
    if dtype != "float32":
        raise ConfigError(
            f"--dtype: must be float32 in a TensorFlow checkpoint. Received: {dtype}. Remove it."
        )
    if max_shard_bytes is not None:
        raise ConfigError(
            "--max_shard_gb: must be used with --program hugging_face, because a checkpoint of "
            f"google-research/bert is one file. Received: {max_shard_bytes / 1e9:g}. Remove it."
        )


def _write_google_bert(folder, config, shapes, tensors, global_step, dtype, max_shard_bytes):
    write_tensorflow(folder, _BERT_NAME, tensors, global_step)
    (folder / _BERT_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


PROGRAMS = {
    "hugging_face": Program(
        "Hugging Face",
        _HUGGING_FACE,
        open_hugging_face,
        architecture_of,
        hugging_face.write_hugging_face,
        hugging_face.WRITTEN,
        hugging_face.CARRIED,
        hugging_face.with_carried,
    ),
    "google_bert": Program(
        "Google's program",
        (GOOGLE_BERT,),
        GoogleBertReader,
        lambda reader: GOOGLE_BERT,
        _write_google_bert,
        (f"{_BERT_NAME}.*", _BERT_CONFIG, STATE),
        check=_check_google_bert,
    ),
}
