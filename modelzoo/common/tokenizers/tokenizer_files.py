"""Finds the files of a tokenizer in a folder."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Optional

from cerebras_tf.errors import ConfigError
from modelzoo.common.files.path_advice import advice_on_path
from modelzoo.common.tokenizers.tokenizers import load_tokenizer, normalization_of, read_object

# Kind, vocab_file and encoder_file of a folder's tokenizer.
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
    def of(cls, source: Any) -> TokenizerKeys:
        """Takes the keys that an object has."""
        return cls(**{each.name: getattr(source, each.name, None) for each in fields(cls)})

    def load(self) -> Any:
        """Loads the tokenizer, see `load_tokenizer`."""
        return load_tokenizer(self.tokenizer_type, self.vocab_file, self.encoder_file, self.eos_id)

    def files(self) -> list[Path]:
        """Returns the paths of its files."""
        return [Path(path) for path in (self.vocab_file, self.encoder_file) if path]


def keys_of_folder(folder: str | Path, eos_id: Optional[int] = None) -> Optional[TokenizerKeys]:
    """Returns the TokenizerKeys of the files in a folder, None without a tokenizer."""
    for kind, vocabulary, encoder in LAYOUTS:
        encoder_file = str(Path(folder, encoder)) if encoder else None
        keys = TokenizerKeys(kind, str(Path(folder, vocabulary)), encoder_file, eos_id)
        if all(path.is_file() for path in keys.files()):
            return keys
    return None


def keys_of_section(section: Any) -> TokenizerKeys:
    """Returns the TokenizerKeys of an input section of text: its key `tokenizer`, or bytes.

    Raises:
        ConfigError: the path has no tokenizer.
    """
    path, eos_id = getattr(section, "tokenizer", None), getattr(section, "eos_id", None)
    if path is None:
        return TokenizerKeys("ByteTokenizer", eos_id=eos_id)
    if Path(path).is_file() and str(path).endswith(".json"):
        return TokenizerKeys("JsonTokenizer", str(path), None, eos_id)
    keys = keys_of_folder(path, eos_id)
    if keys is None:
        raise ConfigError(
            f"tokenizer: must be a tokenizer.json, or a folder that contains one or vocab.json and "
            f"merges.txt. Received: {path!r}. {advice_on_path(path, 'Check the path.')}"
        )
    return keys


def lower_cases(folder: str | Path) -> Optional[bool]:
    """Whether the WordPiece tokenizer in a folder lower-cases text; None if no file specifies it.

    Raises:
        DataError: a file is damaged.
    """
    return normalization_of(folder).get("lowercase")


def word_pieces_of(folder: str | Path) -> Optional[list[str]]:
    """Returns the tokens of a WordPiece tokenizer.json in the order of their ids, None without one.

    Raises:
        DataError: the file is damaged.
    """
    found = read_object(folder, "tokenizer.json")
    model = found.get("model") or {}
    if model.get("type") != "WordPiece":
        return None
    tokens = {number: token for token, number in model["vocab"].items()}
    tokens.update({token["id"]: token["content"] for token in found.get("added_tokens") or ()})
    return [tokens[i] for i in range(len(tokens))] if max(tokens) + 1 == len(tokens) else None
