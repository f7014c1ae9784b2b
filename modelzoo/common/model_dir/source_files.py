"""The files of the model that a checkpoint began as: token ids, settings of generation, tokenizer.

``convert to_tf`` writes them next to its checkpoint, training copies them to the folders of its
descendants, and ``convert from_tf`` returns them.
"""

import os
import shutil
from pathlib import Path

from cerebras_tf.whole_file import replacing
from modelzoo.common.config.params import resolve_path, saved_runconfig

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
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
SOURCE_FILES = (CONFIG, GENERATION_CONFIG, *TOKENIZER)


def find_source(folder):
    """Returns the folder that holds the source files of a checkpoint, or None.

    It is the checkpoint's own, or the one that its training started from according to params.yaml.
    """
    seen = set()
    while folder is not None and (folder := os.path.abspath(folder)) not in seen:
        if any(os.path.lexists(os.path.join(folder, name)) for name in SOURCE_FILES):
            return Path(folder)
        seen.add(folder)
        runconfig = saved_runconfig(folder)
        start = runconfig.get("checkpoint_path") or runconfig.get("resume_from")
        folder = start and resolve_path(folder_of(start), folder)
    return None


def copy_source_files(runconfig):
    """Copies the source files of the checkpoint that training starts from to model_dir.

    Files of model_dir stay as they are.
    """
    start = runconfig.checkpoint_path or runconfig.resume_from
    if start and find_source(runconfig.model_dir) != Path(os.path.abspath(runconfig.model_dir)):
        copy_between(find_source(folder_of(start)), runconfig.model_dir)


def copy_tokenizer(section, model_dir):
    """Copies the tokenizer of an input section of text to a folder that has none."""
    path = getattr(section, "tokenizer", None)
    if path and not any(os.path.lexists(os.path.join(model_dir, name)) for name in TOKENIZER):
        copy_between(path if os.path.isdir(path) else os.path.dirname(path), model_dir, TOKENIZER)


def copy_between(source, target, names=SOURCE_FILES):
    """Copies the files with these names from one folder to another, each whole or not at all."""
    for name in names if source else ():
        path = Path(source, name)
        if path.is_file():
            with replacing(Path(target, name)) as partial:
                shutil.copyfile(path, partial)


def folder_of(checkpoint):
    """Returns the folder of a checkpoint that is given by its prefix or its folder."""
    return checkpoint if os.path.isdir(checkpoint) else os.path.dirname(checkpoint) or "."
