"""Decoding with a cache, and predict mode with prompts."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import yaml

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from cerebras_tf.errors import CheckpointError, DataError
from cerebras_tf.memoryx.disk import FileDisk
from modelzoo.common.generate.cached_decoder import CachedDecoder
from modelzoo.common.generate.prediction import write_completions
from modelzoo.common.train import run
from tests.messages import raises
from tests.modelzoo.language_models import NAMES, POSITIONS, VOCAB_SIZE, SmallModel, small_tree

PROMPT_LENGTHS = (5, 1, 11)
PLACES = pytest.mark.parametrize("use_cs", [False, True], ids=["host", "wafer"])


@pytest.fixture(scope="module", params=NAMES)
def model(request, tmp_path_factory):
    return SmallModel(request.param, tmp_path_factory.mktemp(request.param))


def texts():
    generator = np.random.default_rng(0)
    return generator.integers(0, VOCAB_SIZE, (len(PROMPT_LENGTHS), POSITIONS)).astype(np.int32)


def at(logits, positions):
    return np.stack([row[position] for row, position in zip(logits, positions)])


@PLACES
def test_cached_logits_equal_those_of_the_whole_text_at_every_position(model, use_cs):
    ids = texts()
    expected = model.full_logits(ids)
    lengths = np.array(PROMPT_LENGTHS)
    with model.decoder(use_cs) as decoder:
        logits = decoder.start([row[:length] for row, length in zip(ids, lengths)])
        while True:
            np.testing.assert_allclose(logits, at(expected, lengths - 1), rtol=1e-4, atol=1e-4)
            if lengths.max() == POSITIONS:
                break
            logits = decoder.append(ids[np.arange(len(ids)), lengths])
            lengths += 1


def test_rows_that_are_not_active_stay_as_they_are(model):
    ids = texts()
    expected = model.full_logits(ids)
    with model.decoder(False) as decoder:
        decoder.start([ids[0, :4], ids[1, :6], ids[2, :5]])
        decoder.append(ids[:, 7] * 0 + 9, np.array([False, False, False]))
        logits = decoder.append([ids[0, 4], 3, ids[2, 5]], np.array([True, False, True]))
        np.testing.assert_allclose(logits[[0, 2]], at(expected[[0, 2]], [4, 5]), atol=1e-4)
        logits = decoder.append([3, ids[1, 6], 3], np.array([False, True, False]))
        np.testing.assert_allclose(logits[1], expected[1, 6], atol=1e-4)


def test_reordered_rows_continue_with_the_cache_of_the_row_they_were_made_of(model):
    ids = texts()
    with model.decoder(False) as decoder:
        decoder.start([ids[0, :4], ids[1, :6], ids[2, :5]])
        decoder.reorder([1, 1, 0])
        logits = decoder.append([7, 8, 9])
    made = [[*ids[1, :6], 7], [*ids[1, :6], 8], [*ids[0, :4], 9, 0, 0]]
    expected = at(model.full_logits(made), [6, 6, 4])
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_a_model_that_computes_in_float16_decodes_with_a_cache(tmp_path):
    model = SmallModel("gpt3", tmp_path, mixed_precision=True)
    ids = texts()[:1, :8]
    with model.decoder(False) as decoder:
        decoder.start(ids[:, :7])
        logits = decoder.append(ids[:, 7])
    np.testing.assert_allclose(logits, model.full_logits(ids)[:, -1], atol=3e-2)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    model = SmallModel("gpt3", tmp_path / "a")
    other = SmallModel("gpt3", tmp_path / "b", hidden_size=16)
    model.checkpoint = other.checkpoint
    facts = (other.checkpoint, "[257, 16]", "[257, 8]")
    with raises(CheckpointError, *facts), model.decoder(False) as decoder:
        decoder.start([[1, 2]])


PROMPTS = [{"prompt": "def f(", "id": 1}, {"prompt": "x"}, {"prompt": "import os\n"}]


def predict(folder, name, place=("--device", "/cpu:0"), prompts=PROMPTS, **section):
    """Predicts with the model of `folder`; returns the rows written."""
    tree = small_tree(name)
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


@pytest.mark.parametrize("name", NAMES)
def test_predict_completes_each_prompt_and_keeps_the_keys_of_its_row(tmp_path, name):
    SmallModel(name, tmp_path)
    rows = predict(tmp_path, name, num_samples=2, seed=3)
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
    assert tokens(place=(), batch_size=1) == host
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


def test_wrong_prompts_are_refused_before_the_model_runs(tmp_path):
    SmallModel("gpt3", tmp_path)
    long = [{"prompt": "fine"}, {"prompt": "x" * POSITIONS}]
    for given, facts in (
        ({"prompts": long}, ("prompts.jsonl:2", POSITIONS)),
        ({"prompt_file": "none.txt"}, ("none.txt",)),
        ({"skip_steps": 99}, ("at least one row",)),
    ):
        with raises(DataError, *facts):
            predict(tmp_path, "gpt3", **given)


def test_a_plan_logs_what_a_token_reads_from_files(tmp_path, monkeypatch, caplog):
    sizes = {"hidden_size": 64, "filter_size": 256}
    SmallModel("gpt3", tmp_path, **sizes)
    made = small_tree("gpt3", **sizes)
    store = {"memoryx_dir": str(tmp_path / "store"), "memoryx_ram_gb": 2.5e-4}
    made["runconfig"].update(store)
    monkeypatch.setattr(f"{__name__}.small_tree", lambda name: made)
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
