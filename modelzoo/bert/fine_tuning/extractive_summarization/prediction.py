"""Predict mode of extractive summarization: summaries as text, their ROUGE and that of baselines.

selection.py picks the sentences.
"""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from modelzoo.bert.fine_tuning.extractive_summarization.data import read_articles
from modelzoo.bert.fine_tuning.extractive_summarization.oracle import greedy_oracle
from modelzoo.bert.fine_tuning.extractive_summarization.selection import select
from modelzoo.common.files.json_text import write_json_lines
from modelzoo.common.metrics.rouge import mean_rouge
from modelzoo.common.train import predictions

LEAD = 3  # sentences of the baselines
BASELINE_SCORES = ("rouge1-f1_score", "rouge2-f1_score", "rougeLsum-f1_score")


def predict(estimator, inputs, params, checkpoint_path, use_cs):
    """Summarizes the articles of predict_input.predict_file, into ``model_dir/predict``.

    ``summaries_*.jsonl`` has a row an article, at most `predict_steps` batches; the summary of an
    article without sentences, of which the model sees nothing, is empty and has no score. ROUGE
    goes to ``scores.json`` and to TensorBoard, for the model and for ``lead-3`` (the first three
    sentences), ``random-3`` (three drawn ones) and ``oracle`` (chosen with the true summary at
    hand).

    Args:
        estimator: CerebrasEstimator of the model.
        inputs: InputFunctions of the model.
        params: Params.
        checkpoint_path: prefix of the checkpoint.
        use_cs: whether the wafer runs the model.

    Raises:
        ConfigError: if predict_input lacks predict_file or vocab_file.
        DataError: names the file and line of a bad row.
    """
    section = params.predict_input
    articles, _ = read_articles(section)
    found = predictions.predicted_rows(estimator, inputs, params, checkpoint_path, use_cs)
    rows = with_empty([as_row(articles, row, section.top_k) for row in found], articles)
    folder = predictions.predict_folder(params)
    path = folder / f"{predictions.output_name('summaries', estimator, use_cs)}.jsonl"
    write_json_lines(path, rows)
    tf.logging.info("wrote %d summaries to %s", len(rows), path)
    scored = [row for row in rows if row["reference"] and row["sentences"]]
    scores = {}
    if scored:
        scores = {**rouge_of(scored), **baselines([articles[row["number"]] for row in scored])}
    predictions.write_scores(
        folder, checkpoint_path, scores, shown=lambda name: name.endswith("f1_score")
    )


def as_row(articles, prediction, top_k):
    """Returns what is written of an article.

    Args:
        articles: tuple of EncodedArticle.
        prediction: article_ids [1] and probabilities [C].
        top_k: see `select`.
    """
    number = int(prediction["article_ids"][0])
    article = articles[number]
    count = len(article.sentences)
    picked = select(prediction["probabilities"], count, top_k)
    return {
        "number": number,
        "sentences": picked,
        "summary": "\n".join(article.sentences[place] for place in picked),
        "reference": "\n".join(article.highlights),
        "probabilities": [round(float(p), 5) for p in prediction["probabilities"][:count]],
    }


def with_empty(rows, articles):
    """Adds a row with an empty summary for each article without sentences, and says which.

    Args:
        rows: those of `as_row`, in the order of the file.
        articles: tuple of EncodedArticle.

    Returns:
        The rows of the articles that were reached, in the order of the file.
    """
    numbers = [row["number"] for row in rows]
    whole = len(rows) == sum(bool(article.sentences) for article in articles)
    reached = range(len(articles)) if whole else range(numbers[-1])
    empty = [number for number in reached if not articles[number].sentences]
    if empty:
        tf.logging.info(
            "articles without sentences, counted from 0, get an empty summary and no score: %s",
            ", ".join(map(str, empty)),
        )
    nothing = np.zeros(0, np.float32)
    rows = rows + [
        as_row(articles, {"article_ids": [number], "probabilities": nothing}, None)
        for number in empty
    ]
    return sorted(rows, key=lambda row: row["number"])


def rouge_of(rows):
    """Returns the mean ROUGE of rows of `as_row`, in percent by name."""
    return mean_rouge([row["summary"] for row in rows], [row["reference"] for row in rows])


def baselines(articles):
    """Computes the mean ROUGE of summaries that need no model, from the sentences it could pick.

    Args:
        articles: list of EncodedArticle with highlights.

    Returns:
        Percentages by names such as ``lead-3/rouge1-f1_score``.
    """
    generator = np.random.default_rng(0)
    picks: dict[str, list] = {"lead-3": [], "random-3": [], "oracle": []}
    for article in articles:
        count = len(article.sentences)
        picks["lead-3"].append(range(min(LEAD, count)))
        picks["random-3"].append(sorted(generator.permutation(count)[:LEAD]))
        picks["oracle"].append(greedy_oracle(article.sentences, article.highlights))
    references = ["\n".join(article.highlights) for article in articles]
    scores = {}
    for name, chosen in picks.items():
        texts = [
            "\n".join(article.sentences[place] for place in places)
            for article, places in zip(articles, chosen)
        ]
        rouge = mean_rouge(texts, references)
        scores.update({f"{name}/{key}": rouge[key] for key in BASELINE_SCORES})
    return scores
