"""An error about a missing file or folder names the one that was probably meant."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from cerebras_tf.errors import CerebrasError
from modelzoo.bert.fine_tuning.classifier.glue_files import find_files
from modelzoo.bert.fine_tuning.token_classifier.preparation import find_splits
from modelzoo.common.config.params import load_params
from modelzoo.common.convert.hugging_face import HuggingFaceReader
from modelzoo.common.convert.tensorflow_checkpoint import TensorFlowReader
from modelzoo.common.data.preparation.input_files import find_inputs
from modelzoo.common.data.text_files import find_text_files
from modelzoo.common.data.tf_records import find_record_files
from modelzoo.common.files.text_lines import read_lines
from modelzoo.common.model_dir.checkpoint_files import find_checkpoint
from modelzoo.common.tokenizers.tokenizers import load_tokenizer

FILES = (
    "configs/params_gpt3_tiny.yaml",
    "sst2/train/a.tfrecord",
    "vocab.txt",
    "tasks.jsonl",
    "run/model.ckpt-10.index",
    "run/model.ckpt-10.data-00000-of-00001",
)


@pytest.mark.parametrize(
    "read,given,meant",
    [
        (load_params, "configs/params_gpt3_tny.yaml", "configs/params_gpt3_tiny.yaml"),
        (load_params, "config/params_gpt3_tiny.yaml", "configs/params_gpt3_tiny.yaml"),
        (find_record_files, "sst2/trian", "sst2/train"),
        (lambda path: find_text_files(path, ["*.txt"]), "sst/train", "sst2/train"),
        (lambda path: find_files(path, "train"), "ss2", "sst2"),
        (find_splits, "ss2", "sst2"),
        (lambda path: find_inputs([path], (".txt",)), "ss2", "sst2"),
        (lambda path: load_tokenizer("BertTokenizer", path), "vocba.txt", "vocab.txt"),
        (read_lines, "task.jsonl", "tasks.jsonl"),
        (find_checkpoint, "rnu/model.ckpt-10", "run/model.ckpt-10"),
        (find_checkpoint, "rnu", "run"),
        (HuggingFaceReader, "rnu", "run"),
        (TensorFlowReader, "run/model.ckpt-1", "run/model.ckpt-10"),
    ],
)
def test_the_path_that_was_meant_is_named(tmp_path, monkeypatch, read, given, meant):
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CerebrasError) as refused:
        read(given)
    assert f"Did you mean {meant}?" in str(refused.value)
