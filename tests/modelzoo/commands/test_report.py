"""Reports of models of any size from their params files, without TensorFlow; scaling plans."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

import pytest

from cerebras_tf.report.record import read_record
from modelzoo.commands.main import main
from modelzoo.commands.report import workload_of
from tests.modelzoo.configs import CONFIGS, cells_of


@pytest.mark.parametrize("name", ["gpt3_xl_pile", "gpt3_20b_pile", "gptj_6b", "bert_large_msl128"])
def test_a_report_is_written_from_sizes(tmp_path, capsys, name):
    out = tmp_path / "report.html"
    params = CONFIGS / f"params_{name}.yaml"
    assert main(["report", "-p", str(params), "--out", str(out)]) == 0
    assert "prediction for" in capsys.readouterr().out
    record = read_record(str(out))
    assert record["name"] == name and record["fits"]


def test_a_model_of_175_billion_parameters_takes_seconds_and_little_memory(tmp_path):
    text = (CONFIGS / "params_gpt3_20b_pile.yaml").read_text()
    for key, value in {
        "hidden_size": 12288,
        "num_hidden_layers": 96,
        "num_heads": 96,
        "filter_size": 49152,
    }.items():
        text = re.sub(rf"^( +{key}:) \d+", rf"\1 {value}", text, flags=re.MULTILINE)
    (tmp_path / "params_gpt3_175b.yaml").write_text(text)
    code = (
        "import resource, sys\n"
        "from modelzoo.commands.main import main\n"
        "assert main(sys.argv[1:]) == 0 and 'tensorflow' not in sys.modules\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    out = tmp_path / "report.html"
    given = ["report", "-p", str(tmp_path / "params_gpt3_175b.yaml"), "--out", str(out)]
    command = [sys.executable, "-c", code, *given]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert int(ran.stdout.split()[-1]) < 4e6
    assert read_record(str(out))["parameters"] == pytest.approx(175e9, rel=0.01)


def test_copies_and_other_machines_are_asked_for(tmp_path):
    params = str(CONFIGS / "params_bert_base_msl128.yaml")
    records = []
    for i, more in enumerate(([], ["--multireplica"], ["--machine", "cs1"])):
        out = str(tmp_path / f"{i}.html")
        assert main(["report", "-p", params, "--mode", "pipelined", "--out", out, *more]) == 0
        records.append(read_record(out))
    one, many, older = records
    assert many["replicas"] > one["replicas"] == 1
    assert many["global_batch"] == one["global_batch"]
    assert 1.5 < one["samples_per_s"] / older["samples_per_s"] < 3
    assert (older["machine"], one["machine"]) == ("CS-1", "CS-2")


def test_one_pipelined_system_accumulates_the_batches_of_several(tmp_path):
    params, records = str(CONFIGS / "params_gpt3_xl_pile.yaml"), []
    for mode in ("weight_streaming", "pipelined"):
        out = str(tmp_path / f"{mode}.html")
        assert main(["report", "-p", params, "--mode", mode, "--out", out]) == 0
        records.append(read_record(out))
    streamed, pipelined = records
    assert (streamed["num_csx"], streamed["micro_batches"]) == (16, 1)
    assert (pipelined["num_csx"], pipelined["micro_batches"]) == (1, 16)
    assert streamed["global_batch"] == pipelined["global_batch"]


@pytest.mark.parametrize(("model", "column"), [("gpt3", 5), ("gptj", 6), ("bert", 5)])
def test_parameters_are_those_of_the_page(model, column):
    from modelzoo.common.config.params import load_params

    rows = cells_of(model)
    assert len(rows) >= 7
    for name, cells in rows.items():
        given = argparse.Namespace(batch_size=None, params=f"{name}.yaml")
        found = workload_of(load_params(CONFIGS / f"{name}.yaml"), given)
        assert (name, f"{found.parameters:,}") == (name, cells[column])


def test_other_models_are_sent_to_the_compiler(tmp_path, capsys):
    params = str(CONFIGS / "params_transformer_base.yaml")
    assert main(["report", "-p", params, "--out", str(tmp_path / "r.html")]) == 2
    assert "Use --compile_only" in capsys.readouterr().err


def test_a_report_of_pruned_weights(tmp_path, capsys):
    text = (CONFIGS / "params_gpt3_xl_pile.yaml").read_text()
    steps = []
    for name, section in (
        ("dense", ""),
        ("sparse", "sparsity: {mask_type: topk, sparsity_level: 0.75}\n"),
        ("erk", "sparsity: {mask_type: topk, sparsity_distribution: erk}\n"),
    ):
        path, out = tmp_path / f"params_{name}.yaml", tmp_path / f"{name}.html"
        path.write_text(text + section)
        code = main(["report", "-p", str(path), "--out", str(out)])
        shown = capsys.readouterr()
        if name == "erk":
            assert code == 2 and "sparsity must be one level" in shown.err
            continue
        steps.append(read_record(str(out))["steps_per_s"])
        assert ("pruning saves" in shown.out) == (name == "sparse")
    assert 2 < steps[1] / steps[0] < 4
