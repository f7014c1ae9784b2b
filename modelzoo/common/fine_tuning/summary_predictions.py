"""Writes summaries as text, and scores them and some baselines with ROUGE."""

import numpy as np

from cerebras_tf.api import counted, get_logger
from modelzoo.common.files.json_text import write_json_lines
from modelzoo.common.fine_tuning.selection import greedy_oracle, select
from modelzoo.common.fine_tuning.texts import read_articles
from modelzoo.common.metrics.rouge import mean_rouge

LEAD = 3  # sentences of the baselines
BASELINE_SCORES = ("rouge1-f1_score", "rouge2-f1_score", "rougeLsum-f1_score")


def write_predictions(section, rows, folder, name_of):
    """Writes the summaries of predict_input.predict_file, and returns their ROUGE scores.

    ``summaries_*.jsonl`` has a row for each article. An article without sentences has an empty
    summary and no score. Scores are those of the model, of ``lead-3`` (the first three sentences),
    ``random-3`` (three random ones) and ``oracle`` (chosen by comparison with the true summary).
    See FineTuning.write_predictions.
    """
    articles, _ = read_articles(section)
    rows = with_empty([as_row(articles, row, section.top_k) for row in rows], articles)
    path = folder / f"{name_of('summaries')}.jsonl"
    write_json_lines(path, rows)
    get_logger().info("wrote %s to %s", counted(len(rows), "summary", "summaries"), path)
    scored = [row for row in rows if row["reference"] and row["sentences"]]
    if not scored:
        return {}
    return {**rouge_of(scored), **baselines([articles[row["number"]] for row in scored])}


def as_row(articles, prediction, top_k):
    """Returns the output row of a prediction.

    Args:
        prediction: article_ids [1] and probabilities [C].
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
    """Adds a row with an empty summary for each article without sentences, and logs which.

    Returns:
        The rows in the order of the file, up to the last article that was predicted.
    """
    numbers = [row["number"] for row in rows]
    whole = len(rows) == sum(bool(article.sentences) for article in articles)
    reached = range(len(articles)) if whole else range(numbers[-1])
    empty = [number for number in reached if not articles[number].sentences]
    if empty:
        get_logger().info(
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
    """Computes the mean ROUGE of summaries that need no model.

    Returns percentages by names such as ``lead-3/rouge1-f1_score``.
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
