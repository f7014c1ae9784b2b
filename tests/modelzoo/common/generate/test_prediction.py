"""Tests of predict mode with prompts: on files, against Hugging Face, and when it is stopped."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

import yaml

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.memoryx.disk import FileDisk
from modelzoo.common.data.prompts import MADE_KEYS, Prompt
from modelzoo.common.generate.cached_decoder import CachedDecoder
from modelzoo.common.generate.generate import Request
from modelzoo.common.generate.prediction import as_row, write_completions
from modelzoo.common.generate.sampling import Sampler
from modelzoo.common.train import run
from tests.messages import names
from tests.modelzoo.language_models import POSITIONS, ROOMS, SmallModel, small_tree

PROMPTS = [{"prompt": "def f(", "id": 1}, {"prompt": "x"}, {"prompt": "import os\n"}]


def test_keys_of_a_completion_are_those_that_no_row_of_a_prompt_may_have():
    prompt = Prompt("prompts.jsonl:1", "x", np.zeros(1, np.int32), {})
    row = as_row(Request(prompt.tokens, Sampler(), 1), 0, 0, prompt)
    assert set(row) == {*MADE_KEYS, "prompt"}


def predict(folder, room, place=("--device", "/cpu:0"), prompts=PROMPTS, **section):
    """Predicts with the model of `folder`; returns the rows written."""
    tree = small_tree(room)
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    tree["predict_input"] = {
        "data_processor": "GptPromptsProcessor",
        "prompt_file": str(folder / "prompts.jsonl"),
        "batch_size": 2,
        "max_new_tokens": 5,
        **section,
    }
    (folder / "params.yaml").write_text(yaml.safe_dump(tree))
    run.main(["-m", "predict", "-p", f"{folder}/params.yaml", "-o", str(folder), *place])
    name = "completions_tf_0" if place else "completions_cs_0"
    lines = (folder / "predict" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("room", ROOMS)
def test_predict_completes_each_prompt_and_keeps_the_keys_of_its_row(tmp_path, room):
    SmallModel(room, tmp_path)
    rows = predict(tmp_path, room, num_samples=2, seed=3)
    assert [(row["prompt_number"], row["sample"]) for row in rows] == [
        (number, sample) for number in range(3) for sample in range(2)
    ]
    assert [row["prompt"] for row in rows[::2]] == [prompt["prompt"] for prompt in PROMPTS]
    assert rows[0]["id"] == 1 and "id" not in rows[2]
    assert rows[0]["tokens"] != rows[1]["tokens"]
    for row in rows:
        assert len(row["tokens"]) == len(row["log_probs"]) <= 5
        assert row["finish_reason"] in ("length", "end_of_text")
        assert max(row["log_probs"]) <= 0
    assert not list((tmp_path / "predict").glob("*partial*"))


def test_completions_that_positions_truncate_are_logged(tmp_path, caplog):
    SmallModel("gpt3", tmp_path)
    rows = predict(tmp_path, "gpt3", max_new_tokens=POSITIONS - 2, seed=1)
    left = [POSITIONS - len(prompt["prompt"]) for prompt in PROMPTS]
    facts = (f"max_new_tokens is {POSITIONS - 2}", f"{POSITIONS} tokens", "2 of 3 prompts")
    assert names(caplog.text, *facts, f"{left[2]} to {left[0]}")
    for row, count in zip(rows, left):
        assert len(row["tokens"]) <= count
    caplog.clear()
    predict(tmp_path, "gpt3", max_new_tokens=5)
    assert "max_new_tokens" not in caplog.text


def test_scores_of_completions_go_with_them(tmp_path):
    SmallModel("gpt3", tmp_path)
    predict(tmp_path, "gpt3", prompts=[{**prompt, "reference": "x"} for prompt in PROMPTS])
    written = tmp_path / "eval/scores.json"
    (scores,) = json.loads(written.read_text()).values()
    assert any("f1" in name for name in scores)
    predict(tmp_path, "gpt3")
    assert json.loads(written.read_text()) == {}


def test_completions_are_the_same_on_host_and_wafer_and_in_other_batches(tmp_path):
    SmallModel("gpt3", tmp_path)

    def tokens(**options):
        return [row["tokens"] for row in predict(tmp_path, "gpt3", seed=1, **options)]

    host = tokens()
    assert tokens(place=()) == host
    assert tokens(batch_size=1) == host
    assert tokens(top_k=1) == tokens(temperature=0) != host


def test_greedy_completions_equal_hugging_faces(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from modelzoo.common.convert.convert import to_tensorflow

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=257, n_positions=POSITIONS, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    done = to_tensorflow(str(tmp_path / "theirs"), str(tmp_path / "ours"), "hugging_face")
    prompts = [{"prompt_tokens": list(range(9, 9 + length))} for length in (1, 7, 20)]
    tree = yaml.safe_load((tmp_path / "ours" / "params.yaml").read_text())
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    tree["predict_input"] = {
        "data_processor": "GptPromptsProcessor",
        "prompt_file": str(tmp_path / "prompts.jsonl"),
        "batch_size": 3,
        "max_new_tokens": 20,
        "temperature": 0,
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tree))
    command = ["-m", "predict", "-p", f"{tmp_path}/params.yaml", "-o", str(tmp_path / "out")]
    run.main([*command, "--checkpoint_path", str(done.path), "--device", "/cpu:0"])
    lines = (tmp_path / "out" / "predict" / "completions_tf_0.jsonl").read_text().splitlines()
    for prompt, line in zip(prompts, lines):
        ids = torch.tensor([prompt["prompt_tokens"]])
        expected = theirs.generate(
            ids, do_sample=False, max_new_tokens=20, eos_token_id=256, pad_token_id=256
        )
        assert json.loads(line)["tokens"] == expected[0, ids.shape[1] :].tolist()


def test_a_run_that_is_stopped_keeps_the_rows_that_have_ended(tmp_path):
    def rows():
        yield {"prompt_number": 1, "sample": 0}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_completions(rows(), tmp_path, "made")
    assert (tmp_path / "made.partial.jsonl").read_text() == '{"prompt_number": 1, "sample": 0}\n'
    assert not (tmp_path / "made.jsonl").exists()


def test_mistakes_in_section_and_prompts_are_told_before_the_model_runs(tmp_path):
    SmallModel("gpt3", tmp_path)
    long = [{"prompt": "fine"}, {"prompt": "x" * POSITIONS}]
    with pytest.raises(
        DataError, match=r"prompts.jsonl:2: a prompt must be shorter than 48 tokens"
    ):
        predict(tmp_path, "gpt3", prompts=long)
    for mistake, message in (
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"temperature": -1}, "temperature must be at least 0"),
        ({"temperature": 1e-310}, "temperature must be at least 1.2e-38"),
        ({"temperature": 0, "num_samples": 2}, "num_samples must be 1 where only the likeliest"),
        ({"temperature": 0, "top_k": 5}, "top_k has no effect with temperature 0"),
        ({"top_k": 1, "top_p": 0.5}, "top_p has no effect where the likeliest"),
        ({"repetition_penalty": 1e-310}, "repetition_penalty must be at least 1.2e-38"),
        ({"top": 5}, "unknown key predict_input.top"),
        ({"max_sequence_length": POSITIONS + 1}, "must not exceed the 48 positions"),
        ({"vocab_size": 300}, "must equal train_input.vocab_size"),
        ({"tokenizer_type": "Word"}, "tokenizer_type must be one of"),
    ):
        with pytest.raises(ConfigError, match=message):
            predict(tmp_path, "gpt3", **mistake)
    with pytest.raises(DataError, match="none.txt: must be a readable text file"):
        predict(tmp_path, "gpt3", prompt_file="none.txt")
    with pytest.raises(DataError, match="must have rows to predict. Received: none after skip"):
        predict(tmp_path, "gpt3", skip_steps=99)


def test_predict_steps_bounds_the_batches_of_prompts(tmp_path, monkeypatch):
    SmallModel("gpt3", tmp_path)
    made = small_tree("gpt3")
    made.setdefault("runconfig", {})["predict_steps"] = 1
    monkeypatch.setattr(f"{__name__}.small_tree", lambda room: made)
    assert [row["prompt_number"] for row in predict(tmp_path, "gpt3")] == [0, 1]


def test_prompts_without_generation_are_batches_that_the_model_compiles_for(tmp_path):
    SmallModel("gpt3", tmp_path)
    predict(tmp_path, "gpt3", place=())
    command = ["-m", "predict", "-p", f"{tmp_path}/params.yaml", "-o", str(tmp_path / "new")]
    run.main([*command, "--compile_only"])
    assert list((tmp_path / "new").rglob("program_*.zip"))


def test_a_plan_says_before_a_generation_what_a_token_reads_from_files(
    tmp_path, monkeypatch, caplog
):
    sizes = {"hidden_size": 64, "filter_size": 256}
    SmallModel("gpt3", tmp_path, **sizes)
    made = small_tree("gpt3", **sizes)
    store = {"memoryx_dir": str(tmp_path / "store"), "memoryx_ram_gb": 2.5e-4}
    made["runconfig"].update(store)
    monkeypatch.setattr(f"{__name__}.small_tree", lambda room: made)
    read, append, start = FileDisk.read, CachedDecoder.append, CachedDecoder.start
    moved, began = [0], []

    def counted(disk, records):
        moved[-1] += sum(record.size for record in records)
        read(disk, records)

    def next_token(*args):
        moved.append(0)
        return append(*args)

    def first_token(*args):
        began.append(len(caplog.records))
        return start(*args)

    monkeypatch.setattr(FileDisk, "read", counted)
    monkeypatch.setattr(CachedDecoder, "append", next_token)
    monkeypatch.setattr(CachedDecoder, "start", first_token)
    with caplog.at_level("INFO", "tensorflow"):
        predict(tmp_path, "gpt3", place=(), prompts=PROMPTS[:2], max_new_tokens=8)
        before = [record.getMessage() for record in caplog.records[: began[0]]]
        (line,) = [line for line in before if line.startswith("a step reads")]
        named = "a step of 2 rows with up to 13 tokens before the new one:"
        assert named in before
        caplog.clear()
        command = ["-m", "predict", "-p", f"{tmp_path}/params.yaml", "-o", str(tmp_path)]
        run.main([*command, "--validate_only"])
    alone = [record.getMessage() for record in caplog.records]
    assert named in alone
    planned = r"a step reads ([\d.]+) MB and writes 0 MB: .*: (the disk|computing) will be .*"
    found = [re.fullmatch(planned, each) for each in (line, *alone)]
    wanted, again = [float(match.group(1)) for match in found if match]
    assert wanted == again == pytest.approx(moved[-1] / 1e6, rel=0.05)
    assert wanted > 0.1
