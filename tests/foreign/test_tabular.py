"""Models on tables of features: columns, lookups of sparse ids, tables of text, ragged rows.

Numbers of ids differ from batch to batch, and text stays on the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from tests.e2e import both_sides

pytestmark = pytest.mark.tf
v1, columns = tf.compat.v1, tf.feature_column

_rng = np.random.default_rng(3)
ROWS = [[_rng.integers(0, 9) for _ in range(count)] for count in (2, 0, 3, 1, 1, 1, 0, 4)]
WORDS = [["amber", "blue", "cyan"][len(row) % 3] for row in ROWS]


def input_fn() -> Any:
    """As that of both_sides, with sparse, ragged and text features; another order each time."""

    def with_rows(features: Any, labels: Any, ragged: Any) -> Any:
        more = {"ragged": ragged, "rows": ragged.to_sparse(), "age": features["x"][:, :1] * 9 + 40}
        return {**features, **more}, labels

    ragged = tf.ragged.constant(ROWS, dtype=tf.int64)
    features = {**both_sides.FEATURES, "word": np.array(WORDS)}
    data = tf.data.Dataset.from_tensor_slices((features, both_sides.LABELS, ragged))
    return data.repeat(3).shuffle(30, seed=5).batch(both_sides.BATCH).map(with_rows)


def wide_and_deep_columns() -> tuple[list[Any], list[Any]]:
    """Columns of every kind that gives indices, and the dense ones."""
    row = columns.categorical_column_with_identity("rows", 9)
    word = columns.categorical_column_with_vocabulary_list("word", ["amber", "blue"], None, -1, 1)
    age = columns.numeric_column("age")
    bucket = columns.bucketized_column(age, [30, 50])
    crossed = columns.crossed_column([bucket, "word"], 7)
    wide = [row, word, bucket, crossed]
    deep = [
        age,
        columns.embedding_column(row, 3, combiner="sqrtn"),
        columns.embedding_column(word, 2),
        columns.embedding_column(crossed, 2, combiner="sum"),
        columns.indicator_column(row),
    ]
    return wide, deep


def canned_wide_and_deep(features: Any, labels: Any, mode: str) -> Any:
    """Ftrl and Adagrad on rows of tables; class names among the predictions."""
    wide, deep = wide_and_deep_columns()
    made = v1.estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=[4],
        n_classes=3,
        label_vocabulary=["a", "b", "c"],
    )
    if labels is not None:
        labels = tf.gather(tf.constant(["a", "b", "c"]), labels["class"])
    return made._model_fn(features, labels, mode, tf.estimator.RunConfig())


def regression(features: Any, labels: Any, mode: str, x: Any, optimizer: Any) -> Any:
    """Scores that are linear in x, with text of the features among the predictions."""
    scores = tf.reshape(v1.layers.dense(x, 1, name="scores"), [-1])
    predictions = {"scores": scores, "word": features["word"]}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions)
    loss = tf.reduce_mean(tf.square(scores - labels["y"]))
    step = optimizer.minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, predictions, loss, step)


def table() -> Any:
    """[9, 3]: rows to look up."""
    return v1.get_variable("table", [9, 3], initializer=v1.random_normal_initializer(seed=2))


def weighted_and_ragged(features: Any, labels: Any, mode: str) -> Any:
    """Weighted sums by each combiner, and sums of ragged rows; Adam decays all rows."""
    rows = features["rows"]
    weights = tf.SparseTensor(
        rows.indices, 0.5 + tf.cast(rows.values, tf.float32), rows.dense_shape
    )
    found = [
        tf.nn.safe_embedding_lookup_sparse(table, rows, weights, combiner=combiner)
        for table in [table()]
        for combiner in ("mean", "sum", "sqrtn")
    ]
    with v1.variable_scope("ragged"):
        found.append(tf.reduce_sum(tf.nn.embedding_lookup(table(), features["ragged"]), 1))
    x = tf.concat(found, 1)
    return regression(features, labels, mode, x, v1.train.AdamOptimizer(0.1))


def dense_features(features: Any, labels: Any, mode: str) -> Any:
    """A Keras layer of columns, a shared embedding, and a table of a lookup by text."""
    _, deep = wide_and_deep_columns()
    ids = tf.lookup.StaticVocabularyTable(
        tf.lookup.KeyValueTensorInitializer(
            tf.constant(["amber", "blue"]), tf.constant([0, 1], tf.int64)
        ),
        2,
    ).lookup(features["word"])
    shared = v1.feature_column.shared_embedding_columns(
        [columns.categorical_column_with_identity(name, 10) for name in ("rows", "ids")], 2
    )
    parts = [
        tf.keras.layers.DenseFeatures(deep)(features),
        v1.feature_column.input_layer(features, shared),
        tf.nn.embedding_lookup(table(), ids),
    ]
    optimizer = v1.train.MomentumOptimizer(0.01, 0.9)
    return regression(features, labels, mode, tf.concat(parts, 1), optimizer)


@pytest.mark.parametrize(
    "model",
    [canned_wide_and_deep, weighted_and_ragged, dense_features],
    ids=lambda model: model.__name__,
)
def test_wafer_and_host_agree(model, tmp_path):
    both_sides.check(model, tmp_path, inputs=input_fn)
