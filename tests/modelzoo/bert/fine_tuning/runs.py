"""Runs the command line of a fine-tuning and reads what it writes. Holds no tests."""

from __future__ import annotations

import json

import yaml

from modelzoo.common.train import run
from tests.reading import scalars_of

HOST = ("--device", "/cpu:0")


def call(folder, tree, mode, *flags, out="out", name="params_x.yaml"):
    """Runs a mode with the params file `tree` in a folder; returns the model folder."""
    path = folder / name
    path.write_text(yaml.safe_dump(tree))
    run.main(["-m", mode, "-p", str(path), "-o", str(folder / out), *flags])
    return folder / out


def evaluated(model_dir):
    """Returns the values of the last evaluation by tag, from the event files."""
    return {tag: value for (_, tag), value in scalars_of(model_dir / "eval").items()}


def predicted(model_dir, kind="predictions"):
    """Returns the rows of the one file of predictions."""
    (path,) = (model_dir / "predict").glob(f"{kind}_*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]
