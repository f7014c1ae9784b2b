"""Tests of data.py: the words of a question that a paragraph has, too."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.bert.fine_tuning.question_answering.data import mark_question_words, read_windows
from modelzoo.bert.fine_tuning.question_answering.params import Params, QuestionAnsweringInput
from modelzoo.common.config.params import params_from_dict
from tests.modelzoo.bert.fine_tuning.made_data import write_vocabulary
from tests.modelzoo.bert.fine_tuning.question_answering.made_squad import articles, write_squad

CLS, SEP = 2, 3
SECTION = {
    "data_processor": "QuestionAnsweringDataProcessor",
    "data_dir": "x",
    "vocab_size": 28,
    "max_sequence_length": 20,
    "batch_size": 8,
}
MODEL = {"hidden_size": 8, "num_hidden_layers": 1, "num_heads": 2, "filter_size": 16}


def tree(marks, **model):
    return {
        "model_name": "bert.fine_tuning.question_answering",
        "train_input": {**SECTION, "mark_question_words": marks},
        "model": {**MODEL, **model},
        "optimizer": {"optimizer_type": "sgd", "learning_rate": 0.1},
    }


def test_words_of_the_question_are_marked_in_the_paragraph_alone():
    rows = [
        ([CLS, 7, 8, SEP, 9, 8, 8, 7, 9, SEP, 0, 0], [0, 0, 0, 0, 1, 2, 2, 2, 1, 1, 0, 0]),
        ([CLS, 5, SEP, CLS, SEP, 4, 5, 0, 6, 8, 7, SEP], [0, 0, 0, 1, 1, 1, 2, 1, 1, 1, 1, 1]),
    ]
    ids, marked = np.array(rows, np.int32).swapaxes(0, 1)
    mask = np.array([[1] * 10 + [0, 0], [1] * 12], np.int32)
    batch = {"input_ids": ids, "input_mask": mask, "segment_ids": np.minimum(marked, 1)}
    found = mark_question_words({name: tf.constant(value) for name, value in batch.items()})
    np.testing.assert_array_equal(found["segment_ids"], marked)
    for name in ("input_ids", "input_mask"):
        np.testing.assert_array_equal(found[name], batch[name])


@pytest.mark.parametrize("model", [{"use_segment_embedding": True}, {"num_segments": 3}])
def test_marks_need_a_segment_of_their_own(model):
    with pytest.raises(ConfigError, match="mark_question_words needs .* num_segments: 3"):
        params_from_dict(Params, tree(True, **model))


def test_evaluation_that_marks_otherwise_than_training_is_refused():
    content = tree(True, use_segment_embedding=True, num_segments=3)
    content["eval_input"] = {"data_dir": "y", "mark_question_words": False}
    with pytest.raises(ConfigError, match="eval_input.mark_question_words must be that of train"):
        params_from_dict(Params, content)


def test_evaluation_and_prediction_mark_as_training_does():
    content = tree(True, use_segment_embedding=True, num_segments=3)
    content["eval_input"] = {"data_dir": "y"}
    content["predict_input"] = {"predict_file": "z.json"}
    params = params_from_dict(Params, content)
    assert params.eval_input.mark_question_words and params.predict_input.mark_question_words


def test_two_questions_with_one_id_are_refused(tmp_path):
    made = articles(2)
    made[1]["paragraphs"][0]["qas"][0]["id"] = name = made[0]["paragraphs"][0]["qas"][0]["id"]
    path = write_squad(tmp_path / "a.json", made)
    given = {"predict_file": str(path), "vocab_file": str(write_vocabulary(tmp_path))}
    with pytest.raises(DataError, match=f"a.json: every question .* Received: '{name}' twice"):
        read_windows(QuestionAnsweringInput(**SECTION, **given))


def test_a_file_without_questions_is_refused_by_name(tmp_path):
    made = articles(1)
    for paragraph in made[0]["paragraphs"]:
        paragraph["qas"] = []
    path = str(write_squad(tmp_path / "none.json", made))
    given = {**SECTION, "vocab_file": str(write_vocabulary(tmp_path)), "predict_file": path}
    with pytest.raises(DataError, match=f"{path}: must hold a question to predict"):
        read_windows(QuestionAnsweringInput(**given))
