"""Runs the model zoo's command line in this process, on a model that trains in a second.

What the tests of the command line share.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from cerebras_tf.cli.exit_codes import run_main
from modelzoo.common.train.run import main
from tests.reading import variables_of

PARAMS = """\
model_name: gpt3
train_input:
    data_processor: GptTextDataProcessor
    data_dir: texts
    eval_fraction: 0.0
    max_sequence_length: 16
    batch_size: 4
eval_input:
    data_processor: GptTextDataProcessor
    data_dir: texts
predict_input: {}
model:
    hidden_size: 32
    num_hidden_layers: 1
    num_heads: 2
    filter_size: 64
optimizer:
    optimizer_type: adamw
    learning_rate: 1e-2
runconfig:
    max_steps: 10
    eval_steps: 2
    save_checkpoints_steps: 5
    save_summary_steps: 5
    tf_random_seed: 1
"""
TEXT = "to be or not to be, that is the question. " * 20 + "and thus the native hue"
WINDOWS = len(TEXT) // 16  # windows of 16 bytes: not a multiple of the batch


@dataclass
class Result:
    """How a command ended.

    Attributes:
        exit_code: as the shell would see it.
        error: what it printed on stderr besides log lines, line breaks as spaces.
        lines: messages it logged.
    """

    exit_code: int
    error: str
    lines: list[str]


class CommandLine:
    """A folder with a params file and its data, and the command line run on it.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.params = folder / "params_small.yaml"
        self.params.write_text(PARAMS)
        (folder / "texts").mkdir()
        (folder / "texts" / "a.txt").write_text(TEXT)

    def change(self, *replacements: tuple[str, str]) -> None:
        """Writes the params file with texts replaced; each must be there."""
        text = PARAMS
        for old, new in replacements:
            assert old in text, old
            text = text.replace(old, new)
        self.params.write_text(text)

    def __call__(self, mode: str, *flags: str, out: str = "out") -> Result:
        """Runs a mode on the folder `out`."""
        logger, records = logging.getLogger("tensorflow"), io.StringIO()
        handler = logging.StreamHandler(records)
        arguments = ["-m", mode, "-p", str(self.params), "-o", str(self.folder / out), *flags]
        logger.addHandler(handler)
        try:
            with contextlib.redirect_stderr(io.StringIO()) as error:
                exit_code = run_main(main, arguments, "run")
        finally:
            logger.removeHandler(handler)
        lines = records.getvalue().splitlines()
        return Result(exit_code, " ".join(error.getvalue().split()), lines)

    def variables(self, out: str = "out") -> dict[str, np.ndarray]:
        """The latest checkpoint of a folder."""
        return variables_of(self.folder / out)

    def steps(self, out: str = "out") -> list[int]:
        """The steps of the checkpoints of a folder that its list names."""
        state = tf.train.get_checkpoint_state(str(self.folder / out))
        paths = state.all_model_checkpoint_paths if state else []
        assert all(map(tf.compat.v1.train.checkpoint_exists, paths))
        return [int(path.rpartition("-")[2]) for path in paths]

    def content(self, out: str = "out") -> dict[str, str]:
        """Checksums of a folder's files, but for the lock."""
        files = (path for path in (self.folder / out).rglob("*") if path.is_file())
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
            if path.name != ".lock"
        }
