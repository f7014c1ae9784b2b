"""Evaluates a model on a task and writes results and scores. Deliberately reads no task file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from modelzoo.common.scores import write_scalars
from modelzoo.common.zero_shot.scoring import split_tokens


def evaluate(session, rows, report=lambda count: None):
    """Scores the rows of a task.

    Args:
        session: ModelSession.
        rows: list of rows of one task, see ``tasks.py``.
        report: called with the number of rows' continuations scored since the last call.

    Returns:
        The results, a dictionary a row, and the scores by name.
    """
    tokenizer = session.tokenizer
    texts = [row.texts() for row in rows]
    pairs = [
        split_tokens(tokenizer, context, continuation, tokenizer.eos_id)
        for of_row in texts
        for context, continuation in of_row
    ]
    scores = iter(session.score(pairs, report=report))
    results = [row.result([next(scores) for _ in of_row]) for row, of_row in zip(rows, texts)]
    return results, {name: float(value) for name, value in rows[0].summary(results).items()}


def write_results(folder, task, step, results, scores):
    """Writes ``<task>.jsonl``, whole or not at all, ``scores.json`` and TensorBoard events.

    Args:
        folder: made if absent.
        task: name of the task.
        step: global step of the checkpoint.
        results: dictionaries, one a row.
        scores: numbers by name.

    Returns:
        The paths of the results and of the scores.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{task}.jsonl"
    partial = folder / f".{path.name}.{os.getpid()}"
    with open(partial, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in results)
    partial.replace(path)
    named = {f"zero_shot/{task}/{name}": value for name, value in scores.items()}
    return path, write_scalars(folder, step, named)
