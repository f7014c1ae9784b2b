"""Turns text into token numbers. Deliberately loads no TensorFlow: it runs in worker processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from cerebras_tf.errors import ConfigError

END_OF_TEXT = "<|endoftext|>"
BYTE_END_OF_TEXT = 256


class ByteTokenizer:
    """Every byte is its own token; 256 ends a document."""

    vocab_size = 257
    eos_id = BYTE_END_OF_TEXT

    def encode(self, text):
        """Returns the tokens of `text` as int32."""
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32)


class FileTokenizer:
    """A tokenizer of the ``tokenizers`` library.

    Args:
        tokenizer: ``tokenizers.Tokenizer``.
        eos_id: number of the token that ends a document, None to look up END_OF_TEXT.
    """

    def __init__(self, tokenizer, eos_id=None):
        self._tokenizer = tokenizer
        self.vocab_size = tokenizer.get_vocab_size()
        self.eos_id = tokenizer.token_to_id(END_OF_TEXT) if eos_id is None else eos_id
        if self.eos_id is None:
            raise ConfigError(
                f"the tokenizer must have the token {END_OF_TEXT}. Received: none among its "
                f"{self.vocab_size}. Name the number of the token that ends a text with --eos_id."
            )

    def encode(self, text):
        """Returns the tokens of `text` as int32."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return np.array(ids, np.int32)


def load_tokenizer(kind, vocab_file=None, encoder_file=None, eos_id=None):
    """Loads a tokenizer.

    Args:
        kind: ``GPT2Tokenizer`` (a vocabulary in JSON and its merges), ``NeoXTokenizer`` (one
            tokenizer.json) or ``ByteTokenizer`` (no file).
        vocab_file: one of the files.
        encoder_file: the other; which is which is seen from their content.
        eos_id: see FileTokenizer.

    Returns:
        An object with `encode`, `eos_id` and `vocab_size`.

    Raises:
        ConfigError: if a file is missing or of another kind.
    """
    if kind == "ByteTokenizer":
        return ByteTokenizer()
    import tokenizers

    files = [path for path in (vocab_file, encoder_file) if path]
    contents = {path: _read(path) for path in files}
    if kind == "NeoXTokenizer":
        for text in contents.values():
            if text.lstrip().startswith("{") and '"model"' in text:
                return FileTokenizer(tokenizers.Tokenizer.from_str(text), eos_id)
        raise ConfigError(
            f"NeoXTokenizer: needs a tokenizer.json in --vocab_file. Received: "
            f"{', '.join(files) or 'no file'}."
        )
    jsons = [path for path in files if contents[path].lstrip().startswith("{")]
    merges = [path for path in files if path not in jsons]
    if len(jsons) != 1 or len(merges) != 1:
        raise ConfigError(
            "GPT2Tokenizer: needs its vocabulary (encoder.json or vocab.json) and its merges "
            f"(vocab.bpe or merges.txt) in --encoder_file and --vocab_file. Received: "
            f"{', '.join(files) or 'no file'}."
        )
    lines = contents[merges[0]].splitlines()
    pairs = [tuple(line.split()) for line in lines if line and not line.startswith("#version")]
    model = tokenizers.models.BPE(vocab=json.loads(contents[jsons[0]]), merges=pairs)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return FileTokenizer(tokenizer, eos_id)


def _read(path):
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: must be a tokenizer file. Received: {error}.") from error
