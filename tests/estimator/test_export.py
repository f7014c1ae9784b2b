"""Checks that SavedModels of every mode hold TensorFlow's own graph, tables and assets included."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from tests.estimator import regression
from tests.estimator.regression import build

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
ModeKeys = tf.estimator.ModeKeys
WORDS = ["a", "b", "c", "d"]


def words_model(features, labels, mode, params):
    """Looks words up in a file of words, and sums weights of theirs; outputs words again."""
    path = params["words"]
    line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    file = tf.lookup.TextFileInitializer(path, tf.string, line, tf.int64, number)
    ids = tf.lookup.StaticHashTable(file, 4).lookup(features["words"])
    table = v1.get_variable("table", initializer=np.linspace(-1, 1, 5).astype("f"))
    scores = tf.reduce_sum(tf.gather(table, ids), -1)
    names = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([0, 1], ["negative", "positive"]), "?"
    ).lookup(tf.cast(scores > 0, tf.int32))
    predictions = {"scores": scores, "names": names}
    if mode == ModeKeys.PREDICT:
        outputs = {
            "serving_default": tf.estimator.export.PredictOutput(predictions),
            "scores": tf.estimator.export.RegressionOutput(scores),
        }
        return tf.estimator.EstimatorSpec(mode, predictions, export_outputs=outputs)
    loss = tf.reduce_mean(tf.square(scores - labels))
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
    metrics = {"error": v1.metrics.mean_absolute_error(labels, scores)}
    return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op, metrics)


def word_batches():
    words = np.array([["a", "b"], ["c", "d"], ["d", "x"]])
    return tf.data.Dataset.from_tensors(({"words": words}, np.ones(3, "f"))).repeat(4)


@pytest.fixture
def trained(tmp_path):
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n")
    made = build(tmp_path / "model", {"words": str(tmp_path / "words.txt")}, words_model)
    made.train(word_batches, max_steps=3)
    return made


def receive():
    words = v1.placeholder(tf.string, [None, 2])
    return tf.estimator.export.ServingInputReceiver({"words": words}, {"words": words})


def receive_with_labels():
    words, labels = v1.placeholder(tf.string, [None, 2]), v1.placeholder(tf.float32, [None])
    return tf.estimator.experimental.build_raw_supervised_input_receiver_fn(
        {"words": words}, labels
    )()


def test_tables_work_on_the_wafer_as_on_the_host(trained):
    host = list(trained.predict(word_batches, use_cs=False))
    wafer = list(trained.predict(word_batches))
    assert [row["names"] for row in wafer] == [row["names"] for row in host]
    assert trained.evaluate(word_batches)["error"] == pytest.approx(
        trained.evaluate(word_batches, use_cs=False)["error"], rel=1e-5
    )


@pytest.mark.parametrize("method", ["export_saved_model", "export_savedmodel"])
def test_tables_and_assets_are_served_where_the_words_file_is_gone(tmp_path, trained, method):
    expected = list(trained.predict(word_batches))[:3]
    extra = tmp_path / "extra.txt"
    extra.write_text("more")
    path = getattr(trained, method)(
        str(tmp_path / "saved"), receive, assets_extra={"notes/extra.txt": str(extra)}
    ).decode()
    (tmp_path / "words.txt").unlink()
    loaded = tf.saved_model.load(path)
    assert {"serving_default", "scores"} <= set(loaded.signatures)
    words = tf.constant([["a", "b"], ["c", "d"], ["d", "x"]])
    found = loaded.signatures["serving_default"](words=words)
    np.testing.assert_allclose(found["scores"], [row["scores"] for row in expected], rtol=1e-5)
    assert list(found["names"].numpy()) == [row["names"] for row in expected]
    with open(f"{path}/assets.extra/notes/extra.txt", encoding="utf-8") as text:
        assert text.read() == "more"


def test_one_saved_model_holds_the_graphs_of_all_modes(tmp_path, trained):
    path = trained.experimental_export_all_saved_models(
        str(tmp_path / "saved"),
        {
            ModeKeys.TRAIN: receive_with_labels,
            ModeKeys.EVAL: receive_with_labels,
            ModeKeys.PREDICT: receive,
        },
    ).decode()
    expected = trained.evaluate(word_batches, steps=1)["loss"]
    words, labels = [["a", "b"], ["c", "d"], ["d", "x"]], np.ones(3, "f")
    for tags, key in ((["train"], "train"), (["eval"], "eval")):
        with tf.Graph().as_default(), v1.Session() as session:
            signatures = v1.saved_model.load(session, tags, path).signature_def
            given, made = signatures[key].inputs, signatures[key].outputs
            feed = {given["words"].name: words, given["label"].name: labels}
            assert session.run(made["loss"].name, feed) == pytest.approx(expected, rel=1e-5)
            if key == "train":
                (train_op,) = v1.get_collection("saved_model_train_op") or [None]
                assert train_op is None or session.run(train_op, feed) is None
    with tf.Graph().as_default(), v1.Session() as session:
        assert v1.saved_model.load(session, ["serve"], path).signature_def


@pytest.mark.parametrize("mode", [ModeKeys.TRAIN, ModeKeys.EVAL])
def test_a_single_mode_may_be_exported(tmp_path, trained, mode):
    path = trained.export_saved_model(
        str(tmp_path / "saved"), receive_with_labels, experimental_mode=mode, as_text=True
    ).decode()
    with open(f"{path}/saved_model.pbtxt", encoding="utf-8") as text:
        assert "words" in text.read()


def test_a_chosen_checkpoint_is_exported_and_a_missing_one_refused(tmp_path):
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n")
    params = {"words": str(tmp_path / "words.txt")}
    made = build(tmp_path / "model", params, words_model, save_checkpoints_steps=1)
    with pytest.raises(ValueError, match="Couldn't find trained model"):
        made.export_saved_model(str(tmp_path / "saved"), receive)
    made.train(word_batches, max_steps=2)
    first = str(tmp_path / "model" / "model.ckpt-1")
    path = made.export_saved_model(str(tmp_path / "saved"), receive, checkpoint_path=first)
    reader = tf.train.load_checkpoint(f"{path.decode()}/variables/variables")
    expected = tf.train.load_variable(first, "table")
    np.testing.assert_array_equal(reader.get_tensor("table"), expected)


def test_a_saver_that_renames_is_used_for_exports_too(tmp_path):
    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        names = {f"other/{v.op.name}": v for v in v1.global_variables()}
        scaffold = v1.train.Scaffold(saver=v1.train.Saver(names))
        outputs = {"serving_default": tf.estimator.export.PredictOutput(spec.predictions)}
        export_outputs = outputs if mode == ModeKeys.PREDICT else None
        return spec._replace(scaffold=scaffold, export_outputs=export_outputs)

    def receiver():
        features = v1.placeholder(tf.float32, [None, 3])
        return tf.estimator.export.TensorServingInputReceiver(features, features)

    made = build(tmp_path / "model", model=model)
    made.train(regression.dataset, max_steps=2)
    path = made.export_saved_model(str(tmp_path / "saved"), receiver).decode()
    names = {name for name, _ in tf.train.list_variables(f"{path}/variables/variables")}
    assert {"other/output", "other/layer/kernel"} <= names
