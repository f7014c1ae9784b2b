"""Checkpoints that are found, checked and copied; an error names the files."""

import errno
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow").compat.v1

from cerebras_tf.bundle.index import advice_on_damage
from cerebras_tf.checkpoints.reader import open_checkpoint, read_variable
from cerebras_tf.checkpoints.writer import write_checkpoint
from cerebras_tf.errors import CheckpointError
from modelzoo.common.model_dir import checkpoint_files
from modelzoo.common.model_dir.checkpoint_files import (
    check_damaged,
    check_files,
    check_start,
    find_checkpoint,
    latest_checkpoint,
    resumed,
    validate_checkpoint,
)
from tests.messages import names, raises

pytestmark = pytest.mark.tf


def test_data_files_that_the_index_names_must_be_there(tmp_path):
    prefix = str(tmp_path / "model.ckpt-5")
    write_checkpoint(prefix, [{"a": np.zeros(3)}, {"b": np.zeros(3)}])
    (tmp_path / "model.ckpt-5.data-00000-of-00007").touch()  # of another one of this name
    check_files(prefix)
    (tmp_path / "model.ckpt-5.data-00001-of-00002").unlink()
    with raises(CheckpointError, f"no {prefix}.data-00001-of-00002. "):
        check_files(prefix)
    index = tmp_path / "model.ckpt-5.index"
    index.write_bytes(index.read_bytes()[:100])
    with raises(CheckpointError, "5.index: must be the complete index"):
        check_files(prefix)


def write_steps(folder, *steps):
    prefixes = [str(folder / f"model.ckpt-{step}") for step in steps]
    for step, prefix in zip(steps, prefixes):
        write_checkpoint(prefix, [{"a": np.ones(300), "global_step": np.int64(step)}])
    tf.train.update_checkpoint_state(str(folder), prefixes[-1], prefixes)
    return prefixes


def damage(prefix):
    """Changes one byte of variable a."""
    path = Path(f"{prefix}.data-00000-of-00001")
    content = path.read_bytes()
    path.write_bytes(content.replace(np.ones(1).tobytes(), b"x" * 8, 1))
    return path


def test_a_checkpoint_is_found_by_its_folder_and_by_each_of_its_files(tmp_path):
    (prefix,) = write_steps(tmp_path, 1)
    for end in ("", ".index", ".data-00000-of-00001"):
        assert find_checkpoint(prefix + end) == prefix
    assert find_checkpoint(str(tmp_path)) == prefix
    with raises(CheckpointError, tmp_path / "model.ckpt-9", prefix):
        find_checkpoint(str(tmp_path / "model.ckpt-9"))


def test_validating_reads_a_small_checkpoint_whole(tmp_path, caplog, monkeypatch):
    first, last = write_steps(tmp_path, 1, 2)
    runconfig = SimpleNamespace(model_dir=str(tmp_path), checkpoint_path=None, resume_from=None)
    with caplog.at_level("INFO", logger="tensorflow"):
        validate_checkpoint("train", runconfig)
        names(caplog.text, last, "checksums of all 2 variables")
        damage(last)
        for mode in ("train", "eval_all"):
            with raises(CheckpointError, last, "variable a", first):
                validate_checkpoint(mode, runconfig)
        monkeypatch.setattr(checkpoint_files, "MAX_VALIDATED_BYTES", 1000)
        validate_checkpoint("eval", runconfig)
    names(caplog.text, last, "verified when they are read")


def test_damaged_checkpoints_of_a_folder_are_named_removed_ones_are_not(tmp_path):
    write_steps(tmp_path, 1, 2, 3, 4)
    for path in tmp_path.glob("model.ckpt-2.*"):
        path.unlink()
    check_damaged(str(tmp_path))
    (tmp_path / "model.ckpt-1.index").write_bytes(b"")
    (tmp_path / "model.ckpt-4.index").unlink()
    with pytest.raises(CheckpointError) as error:
        check_damaged(str(tmp_path))
    names(
        error.value, "model.ckpt-1.index: must be the complete index", "no ", "/model.ckpt-4.index"
    )
    assert "model.ckpt-2" not in str(error.value)


def test_the_checkpoint_before_a_damaged_source_is_named(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    first, last = write_steps(folder, 1, 2)
    data = damage(last)
    copy = str(tmp_path / "out" / "model.ckpt-2")
    runconfig = SimpleNamespace(model_dir=str(tmp_path / "out"), resume_from=last)
    with pytest.raises(CheckpointError) as error, resumed(runconfig):
        read_variable(open_checkpoint(copy), copy, "a")
    assert f"checkpoint {last}, variable a: must be undamaged" in str(error.value)
    assert f"--resume_from {first} " in str(error.value)
    data.write_bytes(b"")
    with pytest.raises(CheckpointError) as error, resumed(runconfig):
        pytest.fail("begun")
    assert f"checkpoint {last}, variable global_step: must be undamaged" in str(error.value)
    assert str(error.value).endswith(f"--resume_from {first} with another -o to train.")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("key", [None, "resume_from"])
def test_training_does_not_start_from_a_data_file_that_is_cut(tmp_path, key):
    """Also where the model is only compiled: --validate_only reads no variable."""
    folder = tmp_path / "model"
    folder.mkdir()
    first, last = write_steps(folder, 1, 2)
    given = {"checkpoint_path": None, "resume_from": None, "model_dir": str(folder)}
    if key:
        given |= {key: last, "model_dir": str(tmp_path / "out")}
    check_start(SimpleNamespace(**given))
    data = folder / "model.ckpt-2.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:2400])
    with pytest.raises(CheckpointError) as error:
        check_start(SimpleNamespace(**given))
    names(error.value, data, 2408, 2400, "global_step", f"--resume_from {first} with another -o")


def test_the_advice_on_a_damaged_checkpoint_works_as_it_is_printed(tmp_path, monkeypatch):
    """Also where the folder is relative: TensorFlow looks up the names of a list beside it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "out"
    folder.mkdir()
    write_steps(folder, 1, 2)
    advice = advice_on_damage("out/model.ckpt-2")
    listed, line = re.search(r"content of (\S+) to the line (.*)", advice).groups()
    Path(listed).write_text(f"{line}\n")
    assert latest_checkpoint("out") == "out/model.ckpt-1"


def test_a_source_without_a_step_may_be_a_warm_start(tmp_path):
    prefix = str(tmp_path / "source" / "model.ckpt")
    write_checkpoint(prefix, [{"a": np.ones(3)}])
    runconfig = SimpleNamespace(model_dir=str(tmp_path / "out"), resume_from=prefix)
    facts = ("no global_step", "--checkpoint_path")
    with raises(CheckpointError, *facts), resumed(runconfig):
        pytest.fail("begun")


def test_a_source_in_the_run_s_own_folder_is_refused_and_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_steps(tmp_path, 3)
    (tmp_path / "checkpoint").unlink(missing_ok=True)
    before = sorted(path.name for path in tmp_path.iterdir())
    runconfig = SimpleNamespace(model_dir=".", resume_from=str(tmp_path / "model.ckpt-3"))
    with raises(CheckpointError, "another folder"), resumed(runconfig):
        pytest.fail("begun")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("when", ["looked for", "opened", "copied"])
def test_a_source_that_is_removed_meanwhile_is_replaced_by_the_one_that_came(
    tmp_path, monkeypatch, when
):
    """As training with keep_checkpoint_max 1 does: it writes, lists and then removes the last."""
    folder = tmp_path / "source"
    folder.mkdir()
    write_steps(folder, 1)
    name = {"looked for": "check_files", "opened": "step_of", "copied": "copy_checkpoint"}[when]
    real = getattr(checkpoint_files, name)

    def late(prefix, *rest):
        if prefix.endswith("-1"):
            write_steps(folder, 2)
            for path in folder.glob("model.ckpt-1.*"):
                path.unlink()
        return real(prefix, *rest)

    monkeypatch.setattr(checkpoint_files, name, late)
    out = tmp_path / "out"
    with resumed(SimpleNamespace(model_dir=str(out), resume_from=str(folder))):
        assert latest_checkpoint(str(out)) == str(out / "model.ckpt-2")
        assert not list(out.glob("model.ckpt-1*"))


@pytest.mark.parametrize("full_at", ["data-00000-of-00001", "index", "data_position.json"])
def test_a_copy_that_fails_leaves_no_file(tmp_path, monkeypatch, full_at):
    """As on a disk that is full, of another file system than the source's."""
    folder, out = tmp_path / "source", tmp_path / "out"
    folder.mkdir()
    write_steps(folder, 1)
    (folder / "data_position.json").write_text("[[0, 0, 1]]")

    def no_link(path, target):
        raise OSError(errno.EXDEV, "another file system")

    def full(path, target):
        Path(target).write_bytes(b"part")
        if str(path).endswith(full_at):
            raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "link", no_link)
    monkeypatch.setattr(shutil, "copyfile", full)
    runconfig = SimpleNamespace(model_dir=str(out), resume_from=str(folder))
    with pytest.raises(OSError, match="no space left"), resumed(runconfig):
        pytest.fail("begun")
    assert not list(out.iterdir())


def test_what_a_killed_copy_left_is_no_part_of_the_next(tmp_path):
    folder, out = tmp_path / "source", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    write_steps(folder, 1)
    index = folder / "model.ckpt-1.index"
    os.link(index, out / f".model.ckpt-1.index.{os.getpid()}")
    (out / "data_position.json").write_text("[[0, 0, 7]]")  # the source has none
    (out / f"checkpoint.tmp{'0a' * 16}").touch()
    with resumed(SimpleNamespace(model_dir=str(out), resume_from=str(folder))):
        assert (out / "model.ckpt-1.index").read_bytes() == index.read_bytes()
        assert sorted(path.name for path in out.iterdir()) == [
            "checkpoint",
            "model.ckpt-1.data-00000-of-00001",
            "model.ckpt-1.index",
        ]
