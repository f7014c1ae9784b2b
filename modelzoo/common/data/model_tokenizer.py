"""Finds the tokenizer that a language model was trained with."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Optional

from cerebras_tf.errors import ConfigError
from modelzoo.common.config.input_sections import GptTextDataInput
from modelzoo.common.data.preparation.records import MANIFEST
from modelzoo.common.data.prompts import section_tokenizer
from modelzoo.common.files.json_text import parse_json
from modelzoo.common.tokenizers.tokenizers import KINDS

# The files of a tokenizer in a folder: kind, vocab_file, encoder_file.
LAYOUTS = (
    ("JsonTokenizer", "tokenizer.json", None),
    ("GPT2Tokenizer", "merges.txt", "vocab.json"),
    ("GPT2Tokenizer", "vocab.bpe", "encoder.json"),
)


@dataclass(frozen=True)
class TokenizerKeys:
    """The keys of a tokenizer, as input sections and commands have them."""

    tokenizer_type: Optional[str] = None
    vocab_file: Optional[str] = None
    encoder_file: Optional[str] = None
    eos_id: Optional[int] = None

    @classmethod
    def of(cls, source):
        """Takes the keys that an object has."""
        return cls(**{each.name: getattr(source, each.name, None) for each in fields(cls)})

    def files_exist(self):
        return all(Path(path).is_file() for path in (self.vocab_file, self.encoder_file) if path)


def load_model_tokenizer(params, given):
    """Loads the tokenizer of a trained language model.

    It is looked up in this order: the given keys, `train_input`, the model folder, the manifest of
    the records in `data_dir`, the folder of `checkpoint_path`.

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
        found = TokenizerKeys(
            found.tokenizer_type, found.vocab_file, found.encoder_file, own.eos_id
        )
    return section_tokenizer(found, params.train_input.vocab_size)


def _find(params):
    section, runconfig = params.train_input, params.runconfig
    if isinstance(section, GptTextDataInput):
        trained_with = TokenizerKeys.of(section)
        if not trained_with.tokenizer_type:
            return TokenizerKeys("ByteTokenizer")
        if trained_with.files_exist():
            return trained_with
    places = [runconfig.model_dir]
    for path in (runconfig.checkpoint_path, runconfig.resume_from):
        places += [path, str(Path(path).parent)] if path else []
    found = [keys_of_folder(place) for place in places]
    found[1:1] = [_keys_of_records(folder) for folder in _folders(section)]
    for keys in filter(None, found):
        return keys
    raise ConfigError(
        f"{runconfig.model_dir}: must contain the tokenizer of the model, tokenizer.json or "
        "vocab.json and merges.txt. Received: none. Copy it there, or set --tokenizer_type, "
        "--vocab_file and --encoder_file."
    )


def keys_of_folder(folder):
    """Returns the TokenizerKeys of the files in a folder, None without a tokenizer."""
    for kind, vocabulary, encoder in LAYOUTS:
        encoder_file = str(Path(folder, encoder)) if encoder else None
        keys = TokenizerKeys(kind, str(Path(folder, vocabulary)), encoder_file)
        if keys.files_exist():
            return keys
    return None


def _folders(section):
    given = getattr(section, "data_dir", None) or []
    return [given] if isinstance(given, str) else given


def _keys_of_records(folder):
    try:
        manifest = parse_json(Path(folder, MANIFEST).read_text(encoding="utf-8"))
        settings = manifest["settings"]
        kind = settings["tokenizer_type"]
        keys = TokenizerKeys(kind, settings.get("vocab_file"), settings.get("encoder_file"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return keys if keys.files_exist() else None
