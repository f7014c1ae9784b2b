"""The files of a model's folder that a conversion copies."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from cerebras_tf.errors import CheckpointError
from modelzoo.common.model_dir.source_files import TOKENIZER

_SEEMS_OF_A_TOKENIZER = re.compile(r"token|vocab|merges|\.(model|spm|bpe|codes)$", re.IGNORECASE)
# Hidden files, weights in any format, and what describes them.
_OF_WEIGHTS = re.compile(
    r"^\.|\.(safetensors|bin|h5|msgpack|ot|onnx|gguf|pth?)(\.index\.json)?$"
    r"|\.(index|meta|data-\d{5}-of-\d{5})$|^checkpoint$|^(bert_)?config\.json$"
)


@dataclass(frozen=True)
class CarriedFiles:
    """The files of a folder that a conversion copies.

    Attributes:
        tokenizer: names of the files that a tokenizer may have, none where there is none to copy:
            those of another must not be left next to it.
        left: names of files that are not copied: of the other program's model all but weights, of
            a checkpoint those that seem to be a tokenizer's.
    """

    paths: tuple[Path, ...]
    tokenizer: tuple[str, ...]
    left: tuple[str, ...]


def find_carried(folder, names, is_theirs=False):
    """Finds the files of a folder that a conversion copies.

    Args:
        folder: of the other program's model, or of the checkpoint made of it.
        names: files that are copied besides those of a tokenizer.
        is_theirs: whether the folder is that of the other program's model.

    Returns:
        CarriedFiles.
    """
    folder = Path(folder)
    paths = [folder / name for name in (*names, *TOKENIZER) if os.path.lexists(folder / name)]
    for path in paths:
        try:
            path.open("rb").close()
        except OSError as error:
            raise CheckpointError(
                f"{path}: must be a readable file, because it is copied with the model. Received: "
                f"{error.strerror}. Copy or download it again, or remove it."
            ) from error
    has_tokenizer = any(path.name in TOKENIZER for path in paths)
    there = sorted(os.listdir(folder)) if folder.is_dir() else []
    others = [name for name in there if name not in (*names, *TOKENIZER)]
    left = [
        name
        for name in others
        if (is_theirs and not _OF_WEIGHTS.search(name)) or _SEEMS_OF_A_TOKENIZER.search(name)
    ]
    return CarriedFiles(tuple(paths), TOKENIZER if has_tokenizer else (), tuple(left))


def has_tokenizer(carried):
    """Returns whether a tokenizer of GPT is among the files that a conversion copies."""
    names = {path.name for path in carried.paths}
    return "tokenizer.json" in names or {"vocab.json", "merges.txt"} <= names
