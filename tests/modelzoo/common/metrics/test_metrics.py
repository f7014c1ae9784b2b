"""Metrics of whole evaluations, over batches of unequal size, against counts in plain Python."""

from __future__ import annotations

import functools
import json
import math

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import DataError
from modelzoo.common import metrics
from modelzoo.common.metrics.rouge import mean_rouge
from modelzoo.common.metrics.scores import drop_scores, write_scalars
from modelzoo.common.metrics.streaming import (
    streaming_accuracy,
    streaming_confusion,
    streaming_mean,
    streaming_sum,
)
from tests.messages import raises
from tests.reading import scalars_of

SIZES = (5, 1, 7, 4)
EXAMPLES = sum(SIZES)


def evaluate(metric_fn, *columns):
    """Feeds the columns, EXAMPLES rows each, batch by batch to a metric function.

    Returns:
        The final values by name; every update op's last result is checked to equal them.
    """
    columns = [np.asarray(column) for column in columns]
    with tf.Graph().as_default(), tf.Session() as session:
        feeds = [tf.placeholder(c.dtype, [None, *c.shape[1:]]) for c in columns]
        pairs = metric_fn(*feeds)
        values = {name: pair[0] for name, pair in pairs.items()}
        updates = {name: pair[1] for name, pair in pairs.items()}
        session.run(tf.local_variables_initializer())
        start = 0
        for size in SIZES:
            rows = {f: c[start : start + size] for f, c in zip(feeds, columns)}
            last, start = session.run(updates, rows), start + size
        results = session.run(values)
    assert start == EXAMPLES
    np.testing.assert_equal(last, results)
    return results


def test_every_public_name_loads():
    assert all(getattr(metrics, name) for name in metrics.__all__)


def mean(values, weights):
    return {"mean": streaming_mean(values, weights, "mean")}


def test_streaming_mean_weights_all_values_of_all_batches():
    generator = np.random.default_rng(0)
    values, weights = generator.normal(size=(2, EXAMPLES, 3)).astype(np.float32) + 2.0
    weights = np.abs(weights)
    assert evaluate(mean, values, weights)["mean"] == pytest.approx(
        np.average(values.astype(np.float64), weights=weights.astype(np.float64)), rel=1e-6
    )


def test_streaming_mean_counts_no_batch_at_the_end_of_the_input():
    """Batches of static shape, whose number of values needs no input."""
    with tf.Graph().as_default(), tf.Session() as session:
        data = tf.data.Dataset.from_tensor_slices(np.arange(6)).batch(2, drop_remainder=True)
        batch = tf.data.make_one_shot_iterator(data).get_next()
        value, update = streaming_mean(batch, None, "mean")
        session.run(tf.local_variables_initializer())
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                session.run(update)
        assert session.run(value) == 2.5


def test_streaming_mean_of_nothing_is_zero():
    zeros = np.zeros(EXAMPLES, np.float32)
    assert evaluate(mean, zeros + 3.0, zeros)["mean"] == 0.0


def test_streaming_mean_of_float16_counts_beyond_its_largest_number():
    """65,504 is float16's largest; half of the 170,000 tokens here have the value 2."""
    values = np.tile(np.array([1.0, 2.0], np.float16), [EXAMPLES, 5000])
    assert evaluate(mean, values, np.ones_like(values))["mean"] == 1.5


def test_streaming_sum_counts_by_ones_where_float32_no_longer_does():
    with tf.Graph().as_default(), tf.Session() as session:
        ones = tf.placeholder(tf.float32, [])
        value, update = streaming_sum(ones, "count")
        session.run(tf.local_variables_initializer())
        session.run(update, {ones: 2.0**24})
        session.run(update, {ones: 1.0})
        assert session.run(value) == 2**24 + 1


def test_streaming_accuracy_reads_a_column_of_labels_as_a_row():
    labels, predictions = np.arange(EXAMPLES)[:, None] % 3, np.arange(EXAMPLES) % 2
    found = evaluate(
        lambda *columns: {"accuracy": streaming_accuracy(*columns, None, "accuracy")},
        labels,
        predictions,
    )
    assert found["accuracy"] == pytest.approx(np.mean(labels[:, 0] == predictions))


def test_streaming_confusion_puts_labels_in_rows():
    generator = np.random.default_rng(1)
    labels, predictions = generator.integers(0, 3, (2, EXAMPLES, 4))
    weights = generator.integers(0, 2, (EXAMPLES, 4)).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        _, update = streaming_confusion(labels, predictions, weights, 3, "confusion")
        session.run(tf.local_variables_initializer())
        found = session.run(update)
    for true in range(3):
        for predicted in range(3):
            hits = (labels == true) & (predictions == predicted)
            assert found[true, predicted] == (hits * weights).sum()


S = 6


def columns(scale=1.0):
    """Labels, predictions, cross entropy and weights, flat tokens; most of the last are padding."""
    generator = np.random.default_rng(0)
    labels, predictions = generator.integers(0, 3, (2, EXAMPLES, S)).astype(np.int32)
    cross_entropy = generator.gamma(2.0, size=(EXAMPLES, S)).astype(np.float32)
    weights = (np.arange(S) < generator.integers(1, S, (EXAMPLES, 1))).astype(np.float32)
    return labels, predictions, cross_entropy, weights * scale


def expected():
    """Accuracy and mean loss of the tokens that count."""
    hits = loss = count = 0.0
    for label, prediction, cost, weight in zip(*(c.ravel().tolist() for c in columns())):
        if weight:
            hits, loss, count = hits + (label == prediction), loss + cost, count + 1
    return hits / count, loss / count


def test_lm_metrics_are_those_of_the_whole_set():
    accuracy, loss = expected()
    found = evaluate(functools.partial(metrics.lm_metrics, ratio=0.25), *columns())
    assert found["eval/accuracy"] == pytest.approx(accuracy)
    assert found["eval/lm_perplexity"] == pytest.approx(math.exp(loss), rel=1e-6)
    assert found["eval/bits_per_byte"] == pytest.approx(loss * 0.25 / math.log(2), rel=1e-6)
    assert len(found) == 3
    unknown = evaluate(functools.partial(metrics.lm_metrics, ratio=None), *columns())
    assert set(unknown) == set(found) - {"eval/bits_per_byte"}


@pytest.mark.parametrize(
    ("function", "names"),
    [
        ("masked_lm_metrics", ["eval/accuracy_masked_lm", "eval/mlm_perplexity"]),
        ("seq2seq_lm_metrics", ["eval/accuracy_lm", "eval/perplexity_lm"]),
    ],
)
def test_metrics_of_masked_and_given_tokens_are_those_of_the_whole_set(function, names):
    accuracy, loss = expected()
    found = evaluate(getattr(metrics, function), *columns())
    assert list(found) == names
    assert found[names[0]] == pytest.approx(accuracy)
    assert found[names[1]] == pytest.approx(math.exp(loss), rel=1e-6)


def test_masked_lm_metrics_count_a_token_once_however_a_batch_scales_its_weights():
    scale = np.repeat([1.0, 0.1, 3.0], [5, 1, EXAMPLES - 6])[:, None].astype(np.float32)
    found = evaluate(metrics.masked_lm_metrics, *columns(scale))
    assert found == evaluate(metrics.masked_lm_metrics, *columns())


def test_perplexity_of_a_diverged_model_is_no_error():
    labels, predictions, cross_entropy, weights = columns()
    found = evaluate(metrics.masked_lm_metrics, labels, predictions, cross_entropy + 1e6, weights)
    assert found["eval/mlm_perplexity"] > 1e38


BINARY = functools.partial(metrics.classifier_metrics, num_classes=2)


def class_columns(seed, num_classes):
    return np.random.default_rng(seed).integers(0, num_classes, (2, EXAMPLES)).astype(np.int32)


def pearson(labels, predictions):
    """Matthews correlation is Pearson's of the two class_columns of zeros and ones."""
    return np.corrcoef(labels, predictions)[0, 1]


def harmonic_mean(labels, predictions, of):
    """F1 by its other definition, from precision and recall."""
    hits = sum(a == b == of for a, b in zip(labels, predictions))
    precision, recall = hits / sum(predictions == of), hits / sum(labels == of)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize("seed", range(4))
def test_two_classes_have_accuracy_f1_and_matthews_correlation(seed):
    labels, predictions = class_columns(seed, 2)
    found = evaluate(BINARY, labels, predictions)
    assert list(found) == ["eval/accuracy_cls", "eval/f1_score", "eval/mcc"]
    assert found["eval/accuracy_cls"] == pytest.approx(np.mean(labels == predictions))
    assert found["eval/f1_score"] == pytest.approx(harmonic_mean(labels, predictions, 1))
    assert found["eval/mcc"] == pytest.approx(pearson(labels, predictions), abs=1e-6)


def test_correlation_of_answers_all_right_all_wrong_and_all_alike():
    labels, _ = class_columns(0, 2)
    assert evaluate(BINARY, labels, labels)["eval/mcc"] == pytest.approx(1.0)
    assert evaluate(BINARY, labels, 1 - labels)["eval/mcc"] == pytest.approx(-1.0)
    assert evaluate(BINARY, labels, 1 - labels)["eval/f1_score"] == 0.0
    for answer in (0, 1):
        assert evaluate(BINARY, labels, np.full_like(labels, answer))["eval/mcc"] == 0.0


def test_matched_and_mismatched_parts_have_their_own_accuracy():
    labels, predictions = class_columns(5, 3)
    matched = np.arange(EXAMPLES) % 3 > 0
    parts = lambda a, b, c: metrics.classifier_metrics(a, b, 3, is_matched=c)  # noqa: E731
    found = evaluate(parts, labels, predictions, matched.astype(np.int32))
    hits = labels == predictions
    assert found == {
        "eval/accuracy_cls": pytest.approx(hits.mean()),
        "eval/accuracy_matched": pytest.approx(hits[matched].mean()),
        "eval/accuracy_mismatched": pytest.approx(hits[~matched].mean()),
    }
    alone = evaluate(parts, labels, predictions, np.ones(EXAMPLES, np.int32))
    assert math.isnan(alone["eval/accuracy_mismatched"])  # has no examples


def test_next_sentence_labels_may_stand_in_a_column():
    labels, predictions = class_columns(6, 2)
    found = evaluate(metrics.next_sentence_metrics, labels[:, None], predictions)
    assert found == {"eval/accuracy_cls": pytest.approx(np.mean(labels == predictions))}


NAMES = ["[PAD]", "B", "I", "O", "X", "[CLS]", "[SEP]"]
METRICS = functools.partial(metrics.token_classification_metrics, label_names=NAMES)
LENGTH = 12


def tag_columns():
    """Sentences as the tokenizer leaves them: [CLS] tags and X [SEP], and padding."""
    generator = np.random.default_rng(0)
    labels = generator.choice([1, 2, 3, 4], (EXAMPLES, LENGTH), p=[0.2, 0.2, 0.4, 0.2])
    lengths = generator.integers(3, LENGTH, EXAMPLES)
    weights = np.arange(LENGTH) < lengths[:, None]
    labels[:, 0], labels[np.arange(EXAMPLES), lengths - 1] = 5, 6
    labels = np.where(weights, labels, 0)
    wrong = generator.random((EXAMPLES, LENGTH)) < 0.3
    predictions = np.where(wrong, generator.integers(0, len(NAMES), (EXAMPLES, LENGTH)), labels)
    return labels.astype(np.int32), predictions.astype(np.int32), weights.astype(np.float16)


def f1(pairs, of):
    """F1 of the labels `of`, from precision and recall."""
    hits = sum(a == b and a in of for a, b in pairs)
    precision = hits / sum(b in of for _, b in pairs)
    recall = hits / sum(a in of for a, _ in pairs)
    return 2 * precision * recall / (precision + recall)


def test_token_level_f1_is_over_the_labels_that_start_with_b_or_i():
    labels, predictions, weights = tag_columns()
    pairs = [
        (a, b)
        for a, b, w in zip(labels.ravel(), predictions.ravel(), weights.ravel().tolist())
        if w
    ]
    found = evaluate(METRICS, labels, predictions, weights)
    assert found["eval/token_level_macro_f1"] == pytest.approx(
        (f1(pairs, {1}) + f1(pairs, {2})) / 2
    )
    assert found["eval/token_level_micro_f1"] == pytest.approx(f1(pairs, {1, 2}))


def chunks(numbers):
    """Places of the chunks of one type, written as the text they would be."""
    text = "".join({1: "B", 2: "I"}.get(number, "O") for number in numbers) + "O"
    found, start = set(), None
    for place, letter in enumerate(text):
        if start is not None and letter != "I":
            found.add((start, place))
        if letter == "B" or (letter == "I" and text[:place][-1:] in ("", "O")):
            start = place
        elif letter == "O":
            start = None
    return found


def test_entity_f1_leaves_out_the_later_pieces_of_words():
    labels, predictions, weights = tag_columns()
    found_count = predicted_count = true_count = 0
    for row in range(EXAMPLES):
        kept = [i for i in range(LENGTH) if weights[row, i] and labels[row, i] in (1, 2, 3)]
        true, predicted = chunks(labels[row, kept]), chunks(predictions[row, kept])
        found_count += len(true & predicted)
        predicted_count, true_count = predicted_count + len(predicted), true_count + len(true)
    precision, recall = found_count / predicted_count, found_count / true_count
    found = evaluate(METRICS, labels, predictions, weights)
    assert found["eval/entity_precision"] == pytest.approx(precision)
    assert found["eval/entity_recall"] == pytest.approx(recall)
    assert found["eval/entity_f1"] == pytest.approx(2 / (1 / precision + 1 / recall))


def test_right_predictions_score_one_and_none_score_zero():
    labels, _, weights = tag_columns()
    assert set(evaluate(METRICS, labels, labels, weights).values()) == {1.0}
    nothing = np.full_like(labels, NAMES.index("O"))
    assert set(evaluate(METRICS, labels, nothing, weights).values()) == {0.0}


def test_padding_does_not_count_whatever_is_predicted_there():
    labels, predictions, weights = tag_columns()
    other = np.where(weights > 0, predictions, 1)
    assert evaluate(METRICS, labels, other, weights) == evaluate(
        METRICS, labels, predictions, weights
    )


SENTENCES, WORDS = 4, 5


def picked(tokens, probabilities, labels):
    """The sentences with a probability of half or more against those of the labels."""
    return [
        [[row.tolist() for row in document[choice]] for choice in (chance >= 0.5, label > 0)]
        for document, chance, label in zip(tokens, probabilities, labels)
    ]


def test_rouge_metrics_are_the_mean_over_all_examples():
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 9, (EXAMPLES, SENTENCES, WORDS)).astype(np.int32)
    probabilities = generator.random((EXAMPLES, SENTENCES)).astype(np.float32)
    labels = generator.integers(0, 2, (EXAMPLES, SENTENCES)).astype(np.int32)
    found = evaluate(
        lambda *tensors: metrics.rouge_metrics(picked, tensors), tokens, probabilities, labels
    )
    texts = [
        ["\n".join(" ".join(map(str, line)) for line in side) for side in pair]
        for pair in picked(tokens, probabilities, labels)
    ]
    wanted = mean_rouge(*zip(*texts))
    assert len(found) == 12
    assert found == {f"eval/{name}": pytest.approx(wanted[name] / 100) for name in wanted}


def test_rouge_metrics_of_no_example_are_zero():
    tokens = np.zeros((EXAMPLES, 1), np.int32)
    found = evaluate(lambda column: metrics.rouge_metrics(lambda rows: [], [column]), tokens)
    assert set(found.values()) == {0.0}


def test_scores_stand_in_the_events_and_in_the_file(tmp_path):
    folder = tmp_path / "out" / "eval"
    path = write_scalars(folder, 100, {"eval/bleu": 22.5, "eval/exact": 3, "signature": "tok:13a"})
    assert scalars_of(folder) == {(100, "eval/bleu"): 22.5, (100, "eval/exact"): 3.0}
    wanted = {"100": {"eval/bleu": 22.5, "eval/exact": 3.0, "signature": "tok:13a"}}
    assert json.loads(path.read_text()) == wanted
    assert sorted(item.name.partition(".")[0] for item in folder.iterdir()) == ["events", "scores"]


def test_the_file_keeps_other_steps_and_other_scores(tmp_path):
    write_scalars(tmp_path, 100, {"f1": 1.0, "exact": 2.0})
    write_scalars(tmp_path, 200, {"f1": 3.0})
    path = write_scalars(tmp_path, 100, {"f1": 4.0})
    assert json.loads(path.read_text()) == {"100": {"f1": 4.0, "exact": 2.0}, "200": {"f1": 3.0}}


def test_scores_of_predictions_that_are_gone_are_dropped(tmp_path):
    path = tmp_path / "scores.json"
    assert not drop_scores(tmp_path, 100) and not path.exists()
    write_scalars(tmp_path, 100, {"f1": 1.0})
    write_scalars(tmp_path, 200, {"f1": 3.0})
    assert drop_scores(tmp_path, 100) and not drop_scores(tmp_path, 100)
    assert json.loads(path.read_text()) == {"200": {"f1": 3.0}}


def test_a_file_of_something_else_is_named_and_left(tmp_path):
    path = tmp_path / "scores.json"
    path.write_text("[1]", encoding="utf-8")
    with raises(DataError, "scores.json"):
        write_scalars(tmp_path, 1, {"f1": 1.0})
    assert path.read_text() == "[1]" and not scalars_of(tmp_path)
