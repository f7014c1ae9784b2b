"""Evaluates a model on a task and writes results and scores."""

from pathlib import Path

from modelzoo.common.files.json_text import write_json_lines
from modelzoo.common.metrics.scores import write_scalars


def evaluate(session, rows, report=lambda count: None):
    """Scores the rows of a task.

    Args:
        rows: list of rows of one task, see ``tasks.py``.
        report: called with the number of continuations scored since the last call.

    Returns:
        The results, a dictionary for each row, and the scores by name.
    """
    texts = [row.texts() for row in rows]
    pairs = [pair for of_row in texts for pair in of_row]
    places = [row.where for row, of_row in zip(rows, texts) for _ in of_row]
    scores = iter(session.score_texts(pairs, report=report, places=places))
    results = [row.result([next(scores) for _ in of_row]) for row, of_row in zip(rows, texts)]
    return results, {name: float(value) for name, value in rows[0].summary(results).items()}


def write_results(folder, task, step, results, scores):
    """Writes ``<task>.jsonl``, ``scores.json`` and TensorBoard events; returns the two paths."""
    path = write_json_lines(Path(folder, f"{task}.jsonl"), results)
    named = {f"zero_shot/{task}/{name}": value for name, value in scores.items()}
    return path, write_scalars(folder, step, named)
