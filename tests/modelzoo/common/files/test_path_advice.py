"""What names a file or folder that is not there tells the one that was probably meant."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from cerebras_tf.errors import CerebrasError, DataError
from modelzoo.bert.fine_tuning.classifier.tasks import find_files
from modelzoo.bert.fine_tuning.token_classifier.preparation import find_splits
from modelzoo.common.config.params import load_params
from modelzoo.common.convert.hugging_face import HuggingFaceReader
from modelzoo.common.convert.tensorflow_checkpoint import TensorFlowReader
from modelzoo.common.data.preparation.input_files import find_inputs
from modelzoo.common.data.text_files import find_text_files, read_tokens
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
def test_the_path_that_was_meant_is_told(tmp_path, monkeypatch, read, given, meant):
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CerebrasError) as refused:
        read(given)
    assert f"Did you mean {meant}?" in str(refused.value)


@pytest.mark.parametrize("given", ["data", "data/train", "texts/lost.txt"])
@pytest.mark.parametrize(
    "read",
    [
        find_record_files,
        lambda path: read_tokens(find_text_files(path, ["*.txt"])),
        lambda path: find_files(path, "train"),
        lambda path: find_inputs([path], (".txt",)),
        lambda path: load_tokenizer("BertTokenizer", path),
        find_checkpoint,
    ],
)
def test_a_link_that_leads_nowhere_is_told(tmp_path, monkeypatch, read, given):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to("gone")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "lost.txt").symlink_to("gone")
    with pytest.raises(CerebrasError) as refused:
        read(given)
    told = "is a symbolic link whose target is missing: gone. Bring that back, or correct"
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "read",
    [
        lambda path: read_tokens(find_text_files(path, ["*.txt"])),
        lambda path: find_inputs([path], (".txt",)),
    ],
)
def test_a_link_that_leads_nowhere_in_a_folder_of_files_is_told(tmp_path, read):
    (tmp_path / "there.txt").write_text("text")
    (tmp_path / "lost.txt").symlink_to("gone")
    with pytest.raises(DataError, match=r"lost\.txt.*whose target is missing: gone"):
        read(str(tmp_path))


def test_a_file_is_not_meant_where_a_folder_is(tmp_path):
    (tmp_path / "make_data.py").touch()
    with pytest.raises(CerebrasError, match="no such folder. Relative paths"):
        find_record_files(str(tmp_path / "make_data"))
