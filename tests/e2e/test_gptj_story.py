"""GPT-J from Hugging Face to summaries: converted, trained on, fine-tuned, asked, and scored.

The small sibling of what docs/tutorials/gptj.md does with CNN/DailyMail.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")
torch = pytest.importorskip("torch", reason="makes the model to convert")
transformers = pytest.importorskip("transformers", reason="makes the model to convert")

from cerebras_tf.cli.exit_codes import run_main
from modelzoo.commands.main import main as cerebras_tf
from modelzoo.common.train.run import main

ROOT = Path(__file__).resolve().parents[2]
BYTES, SEP, LENGTH, NEW = 257, 257, 48, 8
VOCAB_SIZE = 264
SIZES = {"n_embd": 32, "n_layer": 2, "n_head": 2, "rotary_dim": 8, "n_inner": 64}
TOKENIZER = ["--tokenizer_type", "ByteTokenizer", "--max_seq_length", str(LENGTH)]


def command(*words):
    """Runs a command of `cerebras-tf` in this process."""
    assert cerebras_tf(words) == 0


def run(mode, config, out, *flags):
    """Runs the model zoo's runner in this process."""
    words = ["-m", mode, "-p", str(config), "-o", out, *flags]
    assert run_main(main, words, "run") == 0


def write_config(name, path, **train_input):
    """Copies a YAML of configs/ for a byte-level model of few steps; returns its path."""
    tree = yaml.safe_load((ROOT / "configs" / f"params_{name}.yaml").read_text(encoding="utf-8"))
    tree["train_input"].update(
        vocab_size=VOCAB_SIZE, max_sequence_length=LENGTH, batch_size=4, **train_input
    )
    tree["eval_input"]["data_dir"] = train_input["data_dir"]
    tree["model"].update(hidden_size=32, num_hidden_layers=2, num_heads=2, filter_size=64)
    tree["model"]["rotary_dim"] = 8
    tree["optimizer"]["learning_rate"] = 3e-3
    tree["runconfig"].update(max_steps=6, save_checkpoints_steps=6, save_summary_steps=6)
    if "predict_input" in tree:
        prompts = {"prompt_file": "prompts/prompts.jsonl", "tokenizer_type": "ByteTokenizer"}
        tree["predict_input"] = {
            "data_processor": "GptPromptsProcessor",
            **prompts,
            "max_sequence_length": LENGTH,
            "batch_size": 2,
            "max_new_tokens": NEW,
            "temperature": 0.0,
        }
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


@pytest.fixture
def articles(tmp_path, monkeypatch):
    """A folder with articles, a Hugging Face GPT-J, and the current folder in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")  # the converter sets it; undone at the end
    rows = [
        {"id": str(n), "article": f"On day {n} it rained in town. " * 3, "highlights": "Rain."}
        for n in range(8)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    torch.manual_seed(1)
    config = transformers.GPTJConfig(vocab_size=VOCAB_SIZE, n_positions=LENGTH, **SIZES)
    transformers.GPTJForCausalLM(config).save_pretrained(tmp_path / "theirs")
    return tmp_path


def test_gptj_goes_from_hugging_face_to_scored_summaries(articles):
    command("convert", "to_tf", "theirs", "converted")
    command("prepare", "gpt", "--input_dir", "a.jsonl", "--text_key", "article",
           "--output_dir", "text", *TOKENIZER, "--processes", "1")  # fmt: skip
    common = ["--input_dir", "a.jsonl", *TOKENIZER, "--truncate_article", "--processes", "1"]
    command("prepare", "summarization", *common, "--output_dir", "pairs")
    command("prepare", "summarization", *common, "--output_dir", "prompts", "--prompts", str(NEW))

    continued = write_config("gptj_small_cnn_dm", articles / "a.yaml", data_dir="text")
    run("train", continued, "continued", "--checkpoint_path", "converted/model.ckpt-0")
    tuned = write_config("gptj_small_cnn_dm_summarization", articles / "b.yaml", data_dir="pairs")
    run("train", tuned, "tuned", "--checkpoint_path", "continued/model.ckpt-6")
    run("predict", tuned, "tuned")

    rows = [json.loads(line) for line in Path("prompts/prompts.jsonl").read_text().splitlines()]
    assert [row["prompt_tokens"][-1] for row in rows] == [SEP] * 8
    assert {len(row["prompt_tokens"]) for row in rows} == {LENGTH - NEW}
    done = Path("tuned/predict/completions_cs_0.jsonl").read_text().splitlines()
    assert [json.loads(row)["reference"] for row in done] == ["Rain."] * 8
    scores = json.loads(Path("tuned/eval/scores.json").read_text())["6"]
    assert {"rouge1-f1_score", "rouge2-f1_score", "rougeL-f1_score"} <= set(scores)

    command("convert", "from_tf", "tuned", "back")
    back = transformers.GPTJForCausalLM.from_pretrained("back")
    reader = tf.train.load_checkpoint("tuned")
    kernel = reader.get_tensor("gptj_decoder/1/attn/q_proj/q_proj/kernel")
    ours = torch.from_numpy(kernel.T)
    assert torch.equal(back.transformer.h[1].attn.q_proj.weight, ours)
    first = tf.train.load_checkpoint("converted").get_tensor(
        "gptj_decoder/1/attn/q_proj/q_proj/kernel"
    )
    assert abs(first - kernel).max() > 1e-4
