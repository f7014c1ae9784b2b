"""Tests of extractive summarization's runs."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.bert.fine_tuning.extractive_summarization.preparation import prepare
from modelzoo.common.data.preparation.examples import encode_example
from modelzoo.common.fine_tuning.article_encoding import EncodingSettings
from tests.modelzoo.bert.fine_tuning.extractive_summarization.made_articles import rows, write_jsonl
from tests.modelzoo.bert.fine_tuning.made_data import MODEL, VOCABULARY, write_vocabulary
from tests.modelzoo.bert.fine_tuning.runs import HOST, call, evaluated, predicted

LIMITS = {"max_sequence_length": 70, "max_cls_tokens": 8, "max_highlight_tokens": 30}


def tree(tmp_path, steps, trained=64):
    """Made data, its records, and a YAML that reads them."""
    vocabulary = str(write_vocabulary(tmp_path))
    for seed, (name, count) in enumerate((("train", trained), ("dev", 7))):
        path = write_jsonl(tmp_path / f"{name}.jsonl", rows(count, seed))
        prepare(str(path), tmp_path / name, EncodingSettings(vocabulary, True, **LIMITS))
    tokens = {"vocab_file": vocabulary, "vocab_size": 28, "do_lower_case": True}
    keys = {"batch_size": 8, "buckets": [50], "sep_id": VOCABULARY.index("[SEP]")}
    processor = {"data_processor": "BertSumTfRecordsProcessor", "data_dir": "train"}
    return {
        "model_name": "bert.fine_tuning.extractive_summarization",
        "train_input": {**processor, **LIMITS, **tokens, **keys},
        "eval_input": {"data_dir": "dev", "batch_size": 4, "top_k": 2},
        "predict_input": {"predict_file": "dev.jsonl"},
        "model": {**MODEL, "loss_weight": 1.0},
        "optimizer": {"optimizer_type": "adam", "learning_rate": 0.01},
        "runconfig": {"max_steps": steps, "predict_steps": 99, "tf_random_seed": 1},
    }


def test_it_learns_to_pick_sentences_and_beats_the_baselines(tmp_path):
    content = tree(tmp_path, 100)
    out = call(tmp_path, content, "train_and_eval", *HOST)
    call(tmp_path, content, "predict", *HOST)
    scores = json.loads((out / "predict/scores.json").read_text())["100"]
    for name in ("rouge1-f1_score", "rouge2-f1_score", "rougeLsum-f1_score"):
        best = max(scores[f"lead-3/{name}"], scores[f"random-3/{name}"])
        assert best < scores[name] <= scores[f"oracle/{name}"] == pytest.approx(100.0)
        assert 100.0 * evaluated(out)[f"eval/{name}"] > best  # of WordPieces, not words
    for number, (row, true) in enumerate(zip(predicted(out, "summaries"), rows(7, 1))):
        assert row["number"] == number and row["reference"] == true["highlights"]
        sentences = true["article"].split("\n")
        assert row["summary"].split("\n") == [sentences[place] for place in row["sentences"]]
        assert len(row["probabilities"]) == len(sentences) and len(row["sentences"]) == 2


def test_records_of_the_original_are_read_with_their_mask(tmp_path):
    """Their mask is 1 for padding, and they hold no highlights; the loss is the same."""
    content = tree(tmp_path, 1, trained=8)
    (tmp_path / "old").mkdir()
    for path in (tmp_path / "dev").glob("*.tfrecord*"):
        with tf.io.TFRecordWriter(str(tmp_path / "old" / path.name)) as writer:
            for data in tf.io.tf_record_iterator(str(path)):
                feature = tf.train.Example.FromString(data).features.feature
                row = {n: list(f.int64_list.value) for n, f in feature.items()}
                row["cls_weights"] = np.array(feature["cls_weights"].float_list.value)
                row["input_mask"] = [1 - value for value in row["input_mask"]]
                del row["highlight_ids"]
                writer.write(encode_example(row))
    new = evaluated(call(tmp_path, content, "train_and_eval", *HOST))
    content["eval_input"].update(original_records=True, data_dir="old")
    out = call(tmp_path, content, "eval", *HOST)
    assert evaluated(out)["loss"] == pytest.approx(new["loss"], rel=1e-6)
    assert evaluated(out)["eval/rouge1-f1_score"] == pytest.approx(new["eval/rouge1-f1_score"])
