"""Does what the pages show with real data: the same commands, in a folder of its own.

Those that use it are slow, and skip where the data is absent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
UNCASED = "vocab/bert-base-uncased/vocab.txt"
DEVICES = pytest.mark.parametrize("flags", [["--device", "/cpu:0"], []], ids=["host", "wafer"])


class WorkFolder:
    """The folder in which a page's commands are typed.

    Args:
        path: an empty folder.
        config: name of the YAML without ``params_`` and ending.
        links: what lies in the folder, by name: a path in the folder of data.
        flags: of the runner, such as the device.
    """

    def __init__(self, path, config, links, flags=()):
        self.path = path
        self._config = ROOT / "configs" / f"params_{config}.yaml"
        self._flags = flags
        for name, source in links.items():
            if not (DATA / source).exists():
                pytest.skip(f"{DATA / source} is absent")
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).symlink_to(DATA / source)

    def prepare(self, kind, *words):
        """Runs `cerebras-tf prepare`."""
        self._call("-m", "modelzoo.commands.main", "prepare", kind, *words)

    def run(self, mode, *words):
        """Runs the model zoo's runner into the folder ``out``."""
        command = [
            "-m",
            "modelzoo.common.train.run",
            "-m",
            mode,
            "-p",
            str(self._config),
            "-o",
            "out",
        ]
        self._call(*command, *self._flags, *words)

    def evaluations(self):
        """Returns the metrics of every evaluation, by step and name."""
        import tensorflow.compat.v1 as tf

        found = {}
        for path in sorted((self.path / "out" / "eval").glob("events*")):
            for event in tf.train.summary_iterator(str(path)):
                for value in event.summary.value:
                    found.setdefault(event.step, {})[value.tag] = value.simple_value
        return found

    def scores(self):
        """Returns the scores of the last prediction by name."""
        text = (self.path / "out" / "predict" / "scores.json").read_text(encoding="utf-8")
        return list(json.loads(text).values())[-1]

    def _call(self, *words):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, *words], cwd=self.path, env=environment, check=True)
