"""Tests of the classifier's runs: learning, prediction files, warm start, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.bert.fine_tuning.classifier.model import POOLER
from modelzoo.common.convert.tensorflow_checkpoint import write_tensorflow
from modelzoo.common.fine_tuning.glue_files import TASKS, Row, read_rows
from modelzoo.common.fine_tuning.glue_predictions import submission_indices
from modelzoo.common.train import run
from tests.messages import raises
from tests.modelzoo.bert.fine_tuning.made_data import (
    MODEL,
    SIZES,
    write_mnli,
    write_sst2,
    write_vocabulary,
)
from tests.modelzoo.bert.fine_tuning.runs import HOST, call, evaluated, predicted

PRETRAINING = {
    "model_name": "bert",
    "train_input": {
        "data_processor": "BertTextDataProcessor",
        "data_dir": "texts",
        "eval_fraction": 0.0,
        "max_sequence_length": 24,
        "max_predictions_per_seq": 4,
        "batch_size": 2,
    },
    "model": {**MODEL, "disable_nsp": True, "use_vsl": True},
    "optimizer": {"optimizer_type": "adamw", "learning_rate": 0.01},
    "runconfig": {"max_steps": 2, "tf_random_seed": 3},
}


def tree(tmp_path, vocab_size=28, **sections):
    section = {
        "data_processor": "Sst2DataProcessor",
        "data_dir": "sst2",
        "vocab_file": str(write_vocabulary(tmp_path, vocab_size)),
        "max_sequence_length": 16,
        "buckets": [8],
        "batch_size": 8,
    }
    made = {
        "model_name": "bert.fine_tuning.classifier",
        "train_input": section,
        "eval_input": {"data_dir": "sst2"},
        "model": dict(MODEL),
        "optimizer": {"optimizer_type": "adam", "learning_rate": 0.01},
        "runconfig": {"max_steps": 60, "predict_steps": 9, "tf_random_seed": 1},
    }
    for name, keys in sections.items():
        made[name] = {**made.get(name, {}), **keys}
    return made


def test_it_learns_made_reviews_and_metrics_are_those_of_its_predictions(tmp_path):
    write_sst2(tmp_path / "sst2")
    content = tree(tmp_path, predict_input={"data_dir": "sst2/dev.tsv"})
    out = call(tmp_path, content, "train", *HOST)
    call(tmp_path, content, "eval", *HOST)
    call(tmp_path, content, "predict", *HOST)
    rows = predicted(out)
    labels = np.array(
        [r.label for r in read_rows(tmp_path / "sst2/dev.tsv", TASKS["Sst2DataProcessor"], True)]
    )
    guesses = np.array([row["label"] for row in rows])
    assert [row["example_index"] for row in rows] == list(range(21))
    for row in rows:
        assert np.argmax(row["probabilities"]) == row["label"]
        assert sum(row["probabilities"]) == pytest.approx(1, abs=1e-5)
    both, true, given = (guesses & labels).sum(), labels.sum(), guesses.sum()
    values = evaluated(out)
    assert values["eval/accuracy_cls"] == pytest.approx((labels == guesses).mean())
    assert values["eval/accuracy_cls"] > 0.9
    assert values["eval/f1_score"] == pytest.approx(2 * both / (true + given))
    assert values["eval/mcc"] == pytest.approx(np.corrcoef(labels, guesses)[0, 1], rel=1e-5)


def test_submissions_have_the_indices_of_the_file(tmp_path):
    write_sst2(tmp_path / "sst2", (("train", 16), ("dev", 11), ("test", 3)))
    path = tmp_path / "sst2/test.tsv"
    header, *rows = path.read_text().splitlines()
    numbers = ("900", "17", "904")
    lines = [f"index\t{header}", *map("\t".join, zip(numbers, rows))]
    path.write_text("\n".join(lines) + "\n")
    content = tree(tmp_path, runconfig={"max_steps": 2, "predict_steps": 9})
    out = call(tmp_path, content, "train", *HOST)
    call(tmp_path, content, "predict", *HOST)
    written = (out / "predict/SST-2.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[0] for line in written] == list(numbers)
    assert [row["index"] for row in predicted(out)] == list(numbers)


@pytest.mark.parametrize(
    ("rows", "facts"),
    [
        ([("a", "0"), ("a", "7"), ("a", "7")], ("a:3", "'7'", "a:2")),
        ([("a", "7"), ("b", "7")], ("b:2", "'7'", "a:1")),
        ([("a", "0"), ("a", "")], ("a:2", "empty")),
        ([("a", "0"), ("b", None)], ("b:2", "'0' in a:1")),
        ([("a", None), ("b", "1")], ("b:2", "None in a:1")),
    ],
)
def test_rows_without_an_index_of_their_own_are_refused(rows, facts):
    numbered = enumerate(rows, start=1)
    examples = [Row(("a",), 0, True, index, path, line) for line, (path, index) in numbered]
    with raises(DataError, *facts):
        submission_indices(examples)


def mnli_tree(folder, **runconfig):
    """Parameters that train two steps on MNLI's files, which are written to the folder."""
    write_mnli(folder / "mnli")
    keys = {"data_processor": "MnliDataProcessor", "data_dir": "mnli"}
    return tree(
        folder,
        train_input={**keys, "max_sequence_length": 30},
        eval_input=keys,
        model={"num_cls_classes": 3},
        runconfig={"max_steps": 2, **runconfig},
    )


def test_mnli_has_an_accuracy_and_a_submission_for_each_part(tmp_path):
    content = mnli_tree(tmp_path, predict_steps=9)
    out = call(tmp_path, content, "train_and_eval", *HOST)
    call(tmp_path, content, "predict", *HOST)
    values, guesses = evaluated(out), [row["label"] for row in predicted(out)]
    labels = [row % 3 for row in range(24)]
    for part, name in enumerate(("matched", "mismatched")):
        hits = np.equal(guesses[24 * part : 24 * part + 24], labels)
        assert values[f"eval/accuracy_{name}"] == pytest.approx(hits.mean())
    assert "eval/f1_score" not in values
    lines = (out / "predict/MNLI-mm.tsv").read_text().splitlines()
    names = TASKS["MnliDataProcessor"].labels
    assert lines[1:] == [f"{row}\t{names[label]}" for row, label in enumerate(guesses[24:])]


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """The folder of a pre-training of two steps: params_before.yaml and out/model.ckpt-2."""
    folder = tmp_path_factory.mktemp("before")
    (folder / "texts").mkdir()
    (folder / "texts/a.txt").write_text("so much depends upon a red wheel barrow " * 9)
    call(folder, PRETRAINING, "train", *HOST, name="params_before.yaml")
    return folder


def fine_tuning(tmp_path, before, **sections):
    """The YAML of a fine-tuning that names the pre-training of `before`, and its checkpoint."""
    write_sst2(tmp_path / "sst2")
    content = tree(tmp_path, 260, **sections)
    content["model"] = {"pretrain_params_path": str(before / "params_before.yaml")}
    return content, str(before / "out/model.ckpt-2")


def test_encoder_starts_from_pretraining_and_the_head_from_its_initializer(tmp_path, before):
    """A learning rate of zero shows what training began with."""
    sections = {"optimizer": {"learning_rate": 0.0}, "runconfig": {"max_steps": 1}}
    content, path = fine_tuning(tmp_path, before, **sections)
    out = call(tmp_path, content, "train", "--checkpoint_path", path)
    first, after = tf.train.load_checkpoint(path), tf.train.load_checkpoint(str(out))
    shapes = after.get_variable_to_shape_map()
    for name in shapes:
        if name.startswith(("encoder/", "input_embedding", "position_emb", "segment_emb")) and (
            "Adam" not in name
        ):
            np.testing.assert_array_equal(after.get_tensor(name), first.get_tensor(name), name)
    assert shapes["input_embedding/embedding_weights"] == [260, 16]
    assert shapes["position_embedding/position_embedding_weights"] == [24, 16]
    assert shapes["cls_layer/cls_output_dense/cls_output_dense/kernel"] == [16, 2]
    assert not any(name.startswith("mlm_layer") for name in shapes)


def test_pooler_of_a_checkpoint_without_next_sentences_is_taken_over(tmp_path, before):
    """As one made of a BertModel has it."""
    first = tf.train.load_checkpoint(str(before / "out/model.ckpt-2"))
    tensors = {
        name: first.get_tensor(name)
        for name in first.get_variable_to_shape_map()
        if name.startswith(("encoder/", "pre_encoder", "input_emb", "position_emb", "segment_emb"))
    }
    pooler = np.full((16, 16), 0.25, np.float32)
    tensors |= {POOLER: pooler, POOLER.replace("kernel", "bias"): pooler[0]}
    write_tensorflow(tmp_path, "pooled.ckpt", iter(tensors.items()))
    sections = {"optimizer": {"learning_rate": 0.0}, "runconfig": {"max_steps": 1}}
    content, _ = fine_tuning(tmp_path, before, **sections)
    path = str(tmp_path / "pooled.ckpt")
    out = call(tmp_path, content, "train", "--checkpoint_path", path, *HOST)
    np.testing.assert_array_equal(tf.train.load_checkpoint(str(out)).get_tensor(POOLER), pooler)


@pytest.mark.parametrize("labels", [["negative", "positive"], ["positive", "negative"]])
def test_the_output_layer_of_the_same_task_and_labels_is_kept(tmp_path, labels):
    (tmp_path / "rows.tsv").write_text("text\tlabel\nso good\tpositive\nso bad\tnegative\n")
    columns = {"text_columns": ["text"], "label_column": "label", "labels": labels}
    section = {"data_processor": "TsvDataProcessor", "data_dir": "rows.tsv", "batch_size": 2}
    content = tree(
        tmp_path,
        train_input={**section, **columns},
        eval_input=section,
        optimizer={"learning_rate": 0.0},
        runconfig={"max_steps": 1},
    )
    first = call(tmp_path, content, "train", *HOST)
    content["train_input"]["labels"] = ["negative", "positive"]
    content["runconfig"]["tf_random_seed"] = 2
    second = call(tmp_path, content, "train", "--checkpoint_path", str(first), *HOST, out="second")
    name = "cls_layer/cls_output_dense/cls_output_dense/kernel"
    before, after = (tf.train.load_checkpoint(str(x)).get_tensor(name) for x in (first, second))
    assert np.array_equal(before, after) == (labels == ["negative", "positive"])


def test_a_checkpoint_is_not_trained_or_evaluated_on_text_in_another_case(tmp_path):
    write_sst2(tmp_path / "sst2")
    content = tree(tmp_path, runconfig={"max_steps": 1, "predict_steps": 1})
    out = call(tmp_path, content, "train", *HOST)
    (out / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    for mode, flags in {
        "train": ("--checkpoint_path", str(out), "--max_steps", "2"),
        "eval": (),
        "predict": (),
    }.items():
        folder = "other" if mode == "train" else "out"
        with raises(DataError, f"tokenizer in {out}", "do_lower", "False"):
            call(tmp_path, content, mode, *flags, *HOST, out=folder)


def test_own_keys_win_over_those_of_pretraining(tmp_path, before):
    path = tmp_path / "params_x.yaml"
    content, _ = fine_tuning(tmp_path, before)
    content["model"]["dropout_rate"] = 0.25
    path.write_text(yaml.safe_dump(content))
    params = run.load_params(str(path))
    assert params.model.dropout_rate == 0.25 and params.model.hidden_size == 16
    assert not params.model.use_vsl and params.vocab_size == 260


GPT = {
    "model_name": "gpt3",
    "train_input": {
        "data_processor": "GptTextDataProcessor",
        "max_sequence_length": 8,
        "batch_size": 2,
    },
    "model": SIZES,
    "optimizer": {"optimizer_type": "sgd", "learning_rate": 0.1},
}


@pytest.mark.parametrize(
    ("pretraining", "facts"),
    [(GPT, ["model_name 'gpt3'"]), (PRETRAINING, ["vocab_size", "28", "vocab.txt"]), (None, [])],
    ids=["gpt", "other vocabulary", "missing"],
)
def test_pretraining_that_does_not_fit_is_refused(tmp_path, pretraining, facts):
    path = tmp_path / "params_before.yaml"
    if pretraining:
        path.write_text(yaml.safe_dump(pretraining))
    content = {**tree(tmp_path), "model": {"pretrain_params_path": path.name}}
    with raises(ConfigError, *(facts or [path.name])):
        call(tmp_path, content, "train", *HOST)
