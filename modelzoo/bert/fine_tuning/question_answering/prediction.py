"""Predict mode of question answering: answers to a SQuAD file, and their scores where it has any.

answers.py chooses answers, and modelzoo/common/metrics/squad.py has the rules of scoring.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import tensorflow.compat.v1 as tf

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.whole_file import write_whole
from modelzoo.bert.fine_tuning.question_answering.answers import choose
from modelzoo.bert.fine_tuning.question_answering.baselines import BASELINES
from modelzoo.bert.fine_tuning.question_answering.data import read_windows
from modelzoo.common.metrics.squad import squad_v1, squad_v2
from modelzoo.common.train import predictions

SCORES = ("exact_match", "exact", "f1")  # those of baselines
FILES = ("predictions.json", "nbest_predictions.json", "null_odds.json")


def predict(estimator, inputs, params, checkpoint_path, use_cs):
    """Answers the questions of predict_input.predict_file, into ``model_dir/predict``.

    ``predictions.json`` has the answer of each question, ``nbest_predictions.json`` the best ones,
    ``null_odds.json`` how much likelier no answer is. At most `predict_steps` batches are run; a
    question counts once all of its windows were. Exact match and F1 go to ``scores.json`` and to
    TensorBoard, beside those of baselines that need no model (baselines.py).

    Args:
        estimator: CerebrasEstimator of the model.
        inputs: InputFunctions of the model.
        params: Params.
        checkpoint_path: prefix of the checkpoint.
        use_cs: whether the wafer runs the model.

    Raises:
        ConfigError: if predict_input lacks predict_file or vocab_file, or some questions have an
            answer and some none without version_2_with_negative.
        DataError: if that file is not SQuAD's, or predict_steps end before one question does.
    """
    section, runconfig = params.predict_input, params.runconfig
    windows, _ = read_windows(section)
    check_answers(windows, section)
    rows = predictions.predicted_rows(estimator, inputs, params, checkpoint_path, use_cs)
    choices = choose_answers(windows, rows, section)
    if not choices:
        raise DataError(
            f"{section.predict_file}: at least one question must be predicted. Received: the "
            f"windows of {runconfig.predict_steps or 1} batches. Raise runconfig.predict_steps."
        )
    folder = predictions.predict_folder(params)
    texts = write_answers(choices, section, folder)
    tf.logging.info("wrote answers to %d questions to %s", len(texts), folder)
    scores = score(windows, choices, texts, section)
    predictions.write_scores(folder, checkpoint_path, scores)


def check_answers(windows, section):
    """Refuses questions without an answer among others, where none is not an answer.

    Args:
        windows: of `read_windows`.
        section: QuestionAnsweringInput.

    Raises:
        ConfigError: tells how many there are.
    """
    answered = {question.id: bool(question.answers) for question, _, _ in windows}
    without = [key for key, known in answered.items() if not known]
    if 0 < len(without) < len(answered) and not section.version_2_with_negative:
        raise ConfigError(
            f"{section.predict_file}: predict_input.version_2_with_negative must be True for "
            f"questions without an answer. Received: {len(without)} of {len(answered)} have none, "
            f"the first is {without[0]!r}. Set it, or give each an answer."
        )


def choose_answers(windows, rows, section):
    """Chooses the answers of all questions whose windows were all predicted.

    Args:
        windows: of `read_windows`.
        rows: predictions, each with unique_ids [1], start_logits and end_logits [S].
        section: QuestionAnsweringInput.

    Returns:
        A Choice by question id, in the order of the file.
    """
    rows = {int(row["unique_ids"][0]): (row["start_logits"], row["end_logits"]) for row in rows}
    choices = {}
    numbered = enumerate(windows)
    for question, group in itertools.groupby(numbered, key=lambda item: item[1][0]):
        members = list(group)
        if all(number in rows for number, _ in members):
            (context, offsets) = members[0][1][1]
            parts = [(window, *rows[number]) for number, (_, _, window) in members]
            choices[question.id] = choose(
                context, offsets, parts, section.n_best_size, section.max_answer_length
            )
    return choices


def write_answers(choices, section, folder):
    """Writes the three files, each whole or not at all.

    Args:
        choices: Choice by question id.
        section: QuestionAnsweringInput.
        folder: made if absent.

    Returns:
        The answer's text by question id.
    """
    version_2, threshold = section.version_2_with_negative, section.null_score_diff_threshold
    by_f1 = section.answer_by == "expected_f1"
    texts = {key: choice.text(version_2, threshold, by_f1) for key, choice in choices.items()}
    contents = (
        texts,
        {key: choice.listed(version_2) for key, choice in choices.items()},
        {key: choice.null_odds for key, choice in choices.items()},
    )
    for name, content in zip(FILES, contents):
        write_whole(Path(folder, name), json.dumps(content, indent=2, ensure_ascii=False))
    return texts


def score(windows, choices, texts, section):
    """Scores answers, if the file has true ones, and those of the baselines.

    Args:
        windows: of `read_windows`.
        choices: Choice by question id.
        texts: answers by question id.
        section: QuestionAnsweringInput.

    Returns:
        Numbers by name, of `squad_v1` or `squad_v2`, and names such as ``random-span/f1``; nothing
        where no question has an answer.
    """
    asked = {question.id: (context, question) for question, (context, _), _ in windows}
    true = {key: [text for text, _ in asked[key][1].answers] for key in choices}
    if not any(true.values()):
        return {}
    scoring: Callable[..., dict] = squad_v2 if section.version_2_with_negative else squad_v1
    if section.version_2_with_negative:
        odds = {key: choice.null_odds for key, choice in choices.items()}
        by_f1 = section.answer_by == "expected_f1"
        named = {key: choice.text(by_expected_f1=by_f1) for key, choice in choices.items()}
        best = squad_v2(true, named, odds)
        best = {key: best[key] for key in best if key.startswith("best_")}
    else:
        best = {}
    scores = {**scoring(true, texts), **best}
    for name, answer in BASELINES.items():
        found = scoring(true, {key: answer(*asked[key]) for key in true})
        scores.update({f"{name}/{key}": found[key] for key in SCORES if key in found})
    return scores
