"""Checks `cerebras-tf configs`: every params file is listed, and copies can be run."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelzoo.commands.configs import config_folder, config_names
from modelzoo.commands.main import main
from modelzoo.common.config.params import load_params

ROOT = Path(__file__).resolve().parents[3]


def test_all_params_files_of_the_checkout_are_listed(capsys):
    assert config_folder() == ROOT / "configs"
    assert main(["configs", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    files = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))
    names = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert [f"params_{name}.yaml" for name in names] == files


def test_configs_are_listed_that_contain_all_words(capsys):
    assert main(["configs", "list", "SHAKESPEARE", "gpt3"]) == 0
    assert " ".join(capsys.readouterr().out.split()) == (
        "gpt3_tiny A byte-level GPT that learns from the plays of Shakespeare included in the "
        "package, without a download"
    )
    assert main(["configs", "list", "question_answering", "large"]) == 0  # the model's name
    assert capsys.readouterr().out.split()[0] == "bert_large_squad"
    assert main(["configs", "list", "gpt9"]) == 2
    assert "gpt9" in capsys.readouterr().err


def test_a_copy_is_the_same_and_can_be_loaded(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["configs", "copy", "gpt3_tiny", "params_bert_tiny.yaml", "-o", "mine"]) == 0
    paths = capsys.readouterr().out.split()
    assert paths == ["mine/params_gpt3_tiny.yaml", "mine/params_bert_tiny.yaml"]
    for path in map(Path, paths):
        assert path.read_bytes() == (ROOT / "configs" / path.name).read_bytes()
        assert load_params(path) == load_params(ROOT / "configs" / path.name)


def test_a_fine_tuning_comes_with_the_file_of_its_pre_training(tmp_path, capsys):
    assert main(["configs", "copy", "bert_base_sst2", "-o", str(tmp_path)]) == 0
    names = ["params_bert_base_sst2.yaml", "params_bert_base_msl128.yaml"]
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in names]
    model = load_params(tmp_path / names[0]).model
    assert model.pretrain_params_path == str(tmp_path / names[1])
    assert model.hidden_size == load_params(ROOT / "configs" / names[1]).model.hidden_size


def test_nothing_is_copied_where_one_is_there_already(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("params_gpt3_tiny.yaml").write_text("mine")
    assert main(["configs", "copy", "bert_tiny", "gpt3_tiny"]) == 2
    assert "params_gpt3_tiny.yaml: must not exist." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["params_gpt3_tiny.yaml"]
    assert main(["configs", "copy", "bert_tiny", "gpt3_tiny", "--overwrite"]) == 0
    assert load_params("params_gpt3_tiny.yaml").model_name == "gpt3"


@pytest.mark.parametrize(
    ("name", "advice"), [("gpt3_tny", "Did you mean gpt3_tiny?"), ("x", "configs list` shows all.")]
)
def test_an_unknown_config_is_refused_with_the_nearest_name(name, advice, capsys):
    assert name not in config_names()
    assert main(["configs", "copy", name]) == 2
    assert advice in " ".join(capsys.readouterr().err.split())
