"""Files of a model that are copied as they are, beside a checkpoint of ours and back.

They say what our YAML does not, such as the tokenizer, which is replaced as a whole or not at all.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from cerebras_tf.errors import CheckpointError

# As transformers names them; Google's BERT has the vocabulary alone.
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
_SEEMS_OF_A_TOKENIZER = re.compile(r"token|vocab|merges|\.(model|spm|bpe|codes)$", re.IGNORECASE)


@dataclass(frozen=True)
class CarriedFiles:
    """What of a folder travels with a conversion.

    Attributes:
        paths: files to copy.
        tokenizer: names of the files that a tokenizer may have, none where there is none to copy:
            those of another must not stay beside it.
        left: names of files that seem to be a tokenizer's, and are not known here.
    """

    paths: tuple[Path, ...]
    tokenizer: tuple[str, ...]
    left: tuple[str, ...]


def find_carried(folder, names):
    """Finds what travels of a folder.

    Args:
        folder: of the other program's model, or of the checkpoint made of it.
        names: of files besides the tokenizer's.

    Returns:
        CarriedFiles.

    Raises:
        CheckpointError: one of them cannot be read.
    """
    folder = Path(folder)
    paths = [folder / name for name in (*names, *TOKENIZER) if os.path.lexists(folder / name)]
    for path in paths:
        try:
            path.open("rb").close()
        except OSError as error:
            raise CheckpointError(
                f"{path}: must be a file that can be read, because it goes with the model. "
                f"Received: {error.strerror}. Copy or download it again, or remove it."
            ) from error
    has_tokenizer = any(path.name in TOKENIZER for path in paths)
    there = sorted(os.listdir(folder)) if folder.is_dir() else []
    left = [name for name in there if _SEEMS_OF_A_TOKENIZER.search(name) and name not in TOKENIZER]
    return CarriedFiles(tuple(paths), TOKENIZER if has_tokenizer else (), tuple(left))
