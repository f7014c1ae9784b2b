"""Tests of the token classifier's runs, and of its loss against NumPy."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.bert.fine_tuning.token_classifier.model import token_loss
from modelzoo.bert.fine_tuning.token_classifier.params import TokenClassifierModelParams
from modelzoo.bert.fine_tuning.token_classifier.preparation import Settings, prepare
from modelzoo.common.fine_tuning.tag_labels import Sentence
from modelzoo.common.fine_tuning.tag_predictions import whole_sentences
from tests.messages import raises
from tests.modelzoo.bert.fine_tuning.made_data import MODEL, SIZES, write_tagged, write_vocabulary
from tests.modelzoo.bert.fine_tuning.runs import HOST, call, evaluated


@pytest.fixture
def records(tmp_path):
    """Makes records of made sentences and returns the YAML's content."""
    data = write_tagged(tmp_path / "data")
    settings = Settings(str(write_vocabulary(tmp_path)), True, 20)
    for split in ("train", "dev"):
        prepare(str(data), split, str(tmp_path / "records"), settings)
    section = {"data_processor": "NerDataProcessor", "label_vocab_file": "records/label2id.json"}
    return {
        "model_name": "bert.fine_tuning.token_classifier",
        "train_input": {
            **section,
            "data_dir": "records/train",
            "vocab_size": 28,
            "max_sequence_length": 20,
            "buckets": [10],
            "batch_size": 8,
        },
        "eval_input": {**section, "data_dir": "records/dev"},
        "predict_input": {"text_file": str(data / "devel.tsv")},
        "model": {**MODEL, "num_classes": 7},
        "optimizer": {"optimizer_type": "adam", "learning_rate": 0.02},
        "runconfig": {"max_steps": 60, "predict_steps": 9, "tf_random_seed": 1},
    }


def spans(tags):
    """Entities of well-formed B and I tags: (first, last + 1) places."""
    found, start = set(), None
    for place, tag in enumerate([*tags, "O"]):
        if start is not None and tag[0] != "I":
            found.add((start, place))
            start = None
        if tag[0] == "B":
            start = place
    return found


def test_it_learns_made_sentences_and_scores_what_it_writes(tmp_path, records):
    out = call(tmp_path, records, "train", *HOST)
    call(tmp_path, records, "eval", *HOST)
    call(tmp_path, records, "predict", *HOST)
    text = (out / "predict/devel_tagged.tsv").read_text()
    true, found, hits = 0, 0, 0
    for sentence in text.strip().split("\n\n"):
        _, tags, guesses = zip(*(line.split("\t") for line in sentence.splitlines()))
        first, second = spans(tags), spans(guesses)
        true, found, hits = true + len(first), found + len(second), hits + len(first & second)
    values = evaluated(out)
    assert true > 5
    assert values["eval/entity_f1"] == pytest.approx(2 * hits / (true + found))
    assert values["eval/entity_f1"] > 0.9
    assert values["eval/token_level_macro_f1"] > 0.9


def test_wrong_number_of_classes_is_refused(tmp_path, records):
    records["model"]["num_classes"] = 5
    with raises(ConfigError, "model.num_classes", "7", "B-Disease", "Received: 5"):
        call(tmp_path, records, "train", *HOST)


def test_text_and_labels_of_other_records_are_refused(tmp_path, records):
    records["runconfig"]["max_steps"] = 1
    call(tmp_path, records, "train", *HOST)
    path = tmp_path / "other.json"
    numbers = json.loads((tmp_path / "records/label2id.json").read_text())
    path.write_text(json.dumps({name: place for place, name in enumerate(reversed(numbers))}))
    for mode, file in (("predict", "label2id"), ("eval", "manifest"), ("train", "manifest")):
        key = f"{mode}_input"
        content = {**records, key: {**records[key], "label_vocab_file": str(path)}}
        with raises(ConfigError, path, f"{file}.json"):
            call(tmp_path, content, mode, *HOST, *(["--max_steps", "2"] * (mode == "train")))
    text = (tmp_path / "data/devel.tsv").read_text()
    other = tmp_path / "other.tsv"
    records["predict_input"]["text_file"] = str(other)
    for changed, fact in (
        ("", "Received: none"),
        (text.replace("\tB", "\tI", 1), "SHA-256"),
        (text.split("\n", 1)[1], "of sentence 1"),  # without a manifest
    ):
        other.write_text(changed)
        if fact == "of sentence 1":
            (tmp_path / "records/dev/manifest.json").unlink()
        with raises(DataError, "other.tsv", fact):
            call(tmp_path, records, "predict", *HOST)
    assert not list(tmp_path.glob("out/predict/*tagged*"))


def test_sentences_whose_other_records_were_not_predicted_are_left_out():
    sentences = [Sentence(["a", "b", "c"], ["O"] * 3)] * 4
    words = [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (3, 1)]
    assert whole_sentences(dict.fromkeys(words, "O"), sentences, "a.tsv") == [1]


@pytest.mark.parametrize("padding", [True, False])
def test_loss_is_the_mean_of_all_or_the_weighted_sum_of_real_tokens(padding):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(2, 4, 3)).astype(np.float32)
    labels = generator.integers(0, 3, (2, 4)).astype(np.int32)
    weights = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.float32)
    model = TokenClassifierModelParams(
        **SIZES, num_classes=3, include_padding_in_loss=padding, loss_weight=0.5
    )
    with tf.Graph().as_default(), tf.Session() as session:
        loss = session.run(token_loss(*map(tf.constant, (logits, labels, weights)), model))
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    costs = -np.take_along_axis(log_probs, labels[..., None], -1)[..., 0]
    expected = costs.mean() if padding else 0.5 * (costs * weights).sum() / 2
    assert loss == pytest.approx(expected, rel=1e-5)


def test_it_compiles_without_records_and_their_labels(tmp_path, records):
    del records["predict_input"]
    for missing in ("label_vocab_file", "data_dir"):
        for key in ("train_input", "eval_input"):
            records[key] |= {missing: "nowhere"}
        out = call(tmp_path, records, "train_and_eval", "--compile_only")
        assert (out / "compiled" / "report.html").exists()
        (out / "compiled" / "report.html").unlink()
        with pytest.raises(DataError, match="nowhere"):
            call(tmp_path, records, "train_and_eval")
