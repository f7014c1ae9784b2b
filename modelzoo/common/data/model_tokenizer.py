"""Finds the tokenizer that a language model was trained with."""

from dataclasses import replace
from pathlib import Path

from cerebras_tf.errors import ConfigError
from cerebras_tf.user_files import read_json
from modelzoo.common.config.input_sections import GptTextDataInput
from modelzoo.common.data.preparation.records import MANIFEST
from modelzoo.common.data.prompts import section_tokenizer
from modelzoo.common.model_dir.source_files import find_source
from modelzoo.common.tokenizers.tokenizer_files import (
    TokenizerKeys,
    keys_of_folder,
    keys_of_section,
)
from modelzoo.common.tokenizers.tokenizers import KINDS

_TEXT = (str, type(None))
_SETTINGS = {"tokenizer_type": str, "vocab_file?": _TEXT, "encoder_file?": _TEXT}


def load_model_tokenizer(params, given):
    """Loads the tokenizer of a trained language model.

    It is looked up in this order: the given keys, `train_input`, the model folder or the checkpoint
    that training started from, the manifest of the records in `data_dir`.

    Args:
        params: LanguageModelParams.
        given: an object with the attributes of TokenizerKeys; those of None are not given.

    Raises:
        ConfigError: none of these has a tokenizer.
    """
    own = TokenizerKeys.of(given)
    if not own.tokenizer_type and (own.vocab_file or own.encoder_file):
        raise ConfigError(
            "--tokenizer_type: must be set with --vocab_file or --encoder_file. Received: none. "
            f"Set one of {', '.join(KINDS)}."
        )
    found = own if own.tokenizer_type else _find(params)
    if own.eos_id is not None:
        found = replace(found, eos_id=own.eos_id)
    return section_tokenizer(found, params.train_input.vocab_size)


def _find(params):
    section, runconfig = params.train_input, params.runconfig
    path = getattr(section, "tokenizer", None)
    if isinstance(section, GptTextDataInput) and (path is None or Path(path).exists()):
        return keys_of_section(section)
    source = find_source(runconfig.model_dir)  # the model folder, or one that training started from
    if source and (keys := keys_of_folder(source, getattr(section, "eos_id", None))):
        return keys
    for keys in filter(None, map(_keys_of_records, _folders(section))):
        return keys
    raise ConfigError(
        f"{runconfig.model_dir}: must contain the tokenizer of the model, tokenizer.json or "
        "vocab.json and merges.txt. Received: none. Copy it there, or set --tokenizer_type, "
        "--vocab_file and --encoder_file."
    )


def _folders(section):
    given = getattr(section, "data_dir", None) or []
    return [given] if isinstance(given, str) else given


def _keys_of_records(folder):
    try:
        settings = read_json(Path(folder, MANIFEST), {"settings": _SETTINGS})["settings"]
        kind = settings["tokenizer_type"]
        keys = TokenizerKeys(kind, settings.get("vocab_file"), settings.get("encoder_file"))
    except (OSError, ValueError):
        return None
    return keys if all(path.is_file() for path in keys.files()) else None
