"""Tests of question answering's runs."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.bert.fine_tuning.question_answering.preparation import Settings, prepare
from tests.modelzoo.bert.fine_tuning.made_data import MODEL, write_vocabulary
from tests.modelzoo.bert.fine_tuning.question_answering.made_squad import articles, write_squad
from tests.modelzoo.bert.fine_tuning.runs import HOST, call, evaluated

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
