"""Tests of question answering's runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.bert import preparation as bert_preparation
from modelzoo.bert.fine_tuning.question_answering.preparation import Settings, prepare
from modelzoo.bert.preparation import PreparationSettings
from tests.messages import names
from tests.modelzoo.bert.fine_tuning.made_data import MODEL, write_vocabulary
from tests.modelzoo.bert.fine_tuning.question_answering.made_squad import articles, write_squad
from tests.modelzoo.bert.fine_tuning.runs import HOST, WAFER, call, evaluated

PROCESSOR = {"data_processor": "QuestionAnsweringDataProcessor"}


def tree(tmp_path, steps, trained=48, **predict):
    """Made data, its records, and a YAML that reads them."""
    vocabulary = str(write_vocabulary(tmp_path))
    write_squad(tmp_path / "train.json", articles(trained))
    write_squad(tmp_path / "dev.json", articles(6, seed=1))
    for name in ("train", "dev"):
        settings = Settings(vocabulary, True, max_seq_length=20, doc_stride=8)
        prepare(str(tmp_path / f"{name}.json"), tmp_path / name, settings)
    shapes = {"max_sequence_length": 20, "buckets": [15], "batch_size": 8, "doc_stride": 8}
    tokens = {"vocab_file": vocabulary, "vocab_size": 28, "do_lower_case": True}
    return {
        "model_name": "bert.fine_tuning.question_answering",
        "train_input": {**PROCESSOR, **shapes, **tokens, "data_dir": "train"},
        "eval_input": {"data_dir": "dev", "batch_size": 5},
        "predict_input": {"predict_file": "dev.json", **predict},
        "model": dict(MODEL),
        "optimizer": {"optimizer_type": "adam", "learning_rate": 0.01},
        "runconfig": {"max_steps": steps, "predict_steps": 99, "tf_random_seed": 1},
    }


def test_it_learns_made_questions_and_answers_new_ones(tmp_path):
    out = call(tmp_path, content := tree(tmp_path, 80), "train_and_eval", *HOST)
    call(tmp_path, content, "predict", *HOST)
    scores = json.loads((out / "predict/scores.json").read_text())["80"]
    assert scores["exact_match"] > 90 and scores["f1"] > scores["random-span/f1"]
    assert scores["total"] == 12 and scores["missing"] == 0
    values = evaluated(out)
    assert values["eval/accuracy_span"] > 0.9
    assert values["eval/accuracy_span"] <= min(
        values["eval/accuracy_start"], values["eval/accuracy_end"]
    )
    answers = json.loads((out / "predict/predictions.json").read_text())
    contexts = {p["qas"][0]["id"]: p["context"] for a in articles(6, 1) for p in a["paragraphs"]}
    assert all(answers[key] and answers[key] in contexts[key] for key in contexts)


@pytest.mark.parametrize("flags", [HOST, WAFER], ids=["host", "wafer"])
def test_encoder_starts_from_masked_words_and_the_head_from_its_initializer(tmp_path, flags):
    content = tree(tmp_path, 1, trained=8)
    tokens = {"vocab_file": content["train_input"]["vocab_file"], "max_sequence_length": 20}
    settings = PreparationSettings(
        vocab_file=tokens["vocab_file"],
        do_lower_case=True,
        mlm_only=True,
        disable_masking=True,
        max_seq_length=20,
    )
    (tmp_path / "a.txt").write_text("the film was a story of rain and fever . " * 40)
    bert_preparation.prepare([str(tmp_path / "a.txt")], str(tmp_path / "words"), settings)
    words = {"data_processor": "BertMlmOnlyTfRecordsDynamicMaskProcessor", "data_dir": "words"}
    before = {
        **content,
        "model_name": "bert",
        "train_input": {**words, **tokens, "batch_size": 4, "max_predictions_per_seq": 4},
        "model": {**MODEL, "disable_nsp": True},
    }
    for name in ("eval_input", "predict_input"):
        del before[name]
    first = tf.train.load_checkpoint(str(call(tmp_path, before, "train", *flags, out="before")))
    (tmp_path / "params_before.yaml").write_text(yaml.safe_dump(before))
    content["model"] = {"pretrain_params_path": "params_before.yaml"}
    source = str(tmp_path / "before")
    out = call(tmp_path, content, "train", "--checkpoint_path", source, *flags)
    start = tf.train.load_checkpoint(str(out / "model.ckpt-0"))
    names = start.get_variable_to_shape_map()
    names = [name for name in names if "Adam" not in name and not name.endswith("_power")]
    new = sorted(name for name in names if not first.has_tensor(name))
    assert new == ["qa_logits/qa_logits/bias", "qa_logits/qa_logits/kernel"]
    taken = [name for name in names if name not in (*new, "global_step")]
    assert len(taken) > 15
    for name in taken:
        np.testing.assert_array_equal(start.get_tensor(name), first.get_tensor(name), name)
    head = start.get_tensor("qa_logits/qa_logits/kernel")
    assert head.any() and start.get_tensor("global_step") == 0


def test_evaluation_reads_one_file_as_well(tmp_path):
    content = tree(tmp_path, 1, trained=8)
    (path,) = (tmp_path / "dev").glob("*.tfrecord*")
    content["eval_input"] = {"data_file": str(path), "batch_size": 5}
    assert "eval/accuracy_span" in evaluated(call(tmp_path, content, "train_and_eval", *HOST))
    content["eval_input"]["data_file"] = "nowhere.tfrecords"
    with pytest.raises(DataError) as error:
        call(tmp_path, content, "eval", *HOST)
    assert names(error.value, "nowhere.tfrecords", "data_file")


def test_records_of_another_vocabulary_of_equal_size_are_refused_before_step_1(tmp_path):
    content = tree(tmp_path, 1, trained=8)
    vocabulary = tmp_path / "vocab.txt"
    *first, before, last = vocabulary.read_text().splitlines()
    other = tmp_path / "other.txt"
    other.write_text("\n".join([*first, last, before]) + "\n")
    settings = Settings(str(other), True, max_seq_length=20, doc_stride=8)
    prepare(str(tmp_path / "dev.json"), tmp_path / "dev_of_other", settings)
    content["eval_input"]["data_dir"] = "dev_of_other"
    words = f"dev_of_other: .* tokens of .*vocab.txt.* Received: .*{other}, "
    with pytest.raises(DataError, match=words):
        call(tmp_path, content, "train_and_eval", *HOST)
    assert not list((tmp_path / "out").glob("model.ckpt*"))
    call(tmp_path, content, "train", *HOST)
    with pytest.raises(DataError, match=words):
        call(tmp_path, content, "eval", *HOST)


def test_data_must_be_named_once(tmp_path):
    content = tree(tmp_path, 1, trained=8, articles=[3, 3])
    content["train_input"]["data_file"] = "x.tfrecords"
    with pytest.raises(ConfigError) as error:
        call(tmp_path, content, "train", *HOST)
    assert names(error.value, "train_input.data_dir or data_file", "predict_input.articles")
