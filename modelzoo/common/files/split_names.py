"""Reads splits from the names of files, as in Hugging Face's data sets: train-*, test-*."""

import os
import re

from cerebras_tf.api import counted
from cerebras_tf.errors import DataError

TRAIN, VALIDATION, TEST = "train", "validation", "test"
WORDS = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("validation", "valid", "val", "dev"), VALIDATION),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), TEST),
}
WORD_END = re.compile(r"[-._0-9]+")


def split_of_name(name):
    """Returns the split that a relative path names: by its file, or else by its last folder.

    None if it names none or several. The name of a program, such as ``test.py``, names none.
    """
    parts = name.replace(os.sep, "/").lower().split("/")
    for part in () if parts[-1].endswith(".py") else reversed(parts):
        named = {WORDS[word] for word in WORD_END.split(part) if word in WORDS}
        if named:
            return named.pop() if len(named) == 1 else None
    return None


def files_of_split(files, training, log):
    """Returns the files for training or for evaluation; None if their names do not determine it.

    They do if every name is of a split, and there are files for both. Evaluation reads validation
    if there is any, and else test.

    Args:
        files: pairs of a relative and a whole path.
        log: called with a line about the files of each split, or about names of no split.
    """
    splits = [split_of_name(name) for name, _ in files]
    if not {TRAIN} < {*splits} - {None}:
        return None
    if None in splits:
        log(
            f"data_dir: some names are of splits, such as {files[splits.index(TRAIN)][0]}, and "
            f"others are not, such as {files[splits.index(None)][0]}: the names are ignored. Set "
            "data_dir of train_input and of eval_input to use them"
        )
        return None
    evaluation = VALIDATION if VALIDATION in splits else TEST
    unread = splits.count(TEST) if evaluation == VALIDATION else 0
    log(
        f"data_dir: {counted(splits.count(TRAIN), 'file')} for training and "
        f"{splits.count(evaluation)} for evaluation ({evaluation}), by their names"
        + (f"; {counted(unread, 'file')} of test not read" if unread else "")
    )
    wanted = TRAIN if training else evaluation
    return [pair for pair, split in zip(files, splits) if split == wanted]


def refuse_splits(folder, paths, option):
    """Raises a DataError for a folder whose files are for training and for evaluation by name."""
    names = {split_of_name(os.path.relpath(path, folder)): path for path in paths}
    others = [names[split] for split in (VALIDATION, TEST) if split in names]
    if TRAIN in names and others:
        raise DataError(
            f"{folder}: must have files of one split for one output. Received: {names[TRAIN]} and "
            f"{others[0]}. Give the files of a split to {option}."
        )
