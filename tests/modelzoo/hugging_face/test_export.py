"""Runs of folders of transformers by YAML: LoRA and export, with transformers and peft."""

from __future__ import annotations

import json

import pytest
import yaml

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from cerebras_tf.errors import CheckpointError, ConfigError
from cerebras_tf.memoryx.safetensors_file import TensorFile
from modelzoo.commands import export
from modelzoo.common.config.params import load_params
from modelzoo.common.train import run
from modelzoo.hugging_face import data
from modelzoo.hugging_face.model import LoadedModel, loss_function
from tests.messages import raises
from tests.modelzoo.hugging_face import chats
from tests.modelzoo.hugging_face.test_training import SMALL, tuning_tree

STEPS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model in bfloat16 with a tokenizer, and conversations."""
    path = tmp_path_factory.mktemp("chats")
    tokenizer = chats.make_tokenizer(chats.THINKS)
    tokenizer.save_pretrained(path / "model")
    torch.manual_seed(0)
    ids = {f"{n}_token_id": getattr(tokenizer, f"{n}_token_id") for n in ("bos", "eos", "pad")}
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), initializer_range=0.2, **{**SMALL, **ids}
    )
    transformers.LlamaForCausalLM(config).bfloat16().save_pretrained(path / "model")
    rows = [{"messages": chats.messages(turns)} for turns in chats.CONVERSATIONS * 3]
    chats.write_rows(path / "train.jsonl", rows)
    (path / "template.jinja").write_text(chats.MARKED)
    return path


def write_params(folder, out, **sections):
    """Writes a params file of a training on conversations."""
    chat = {"data_processor": "ChatDataProcessor", "data_dir": str(folder / "train.jsonl")}
    tree = {
        "model_name": "hf_causal_lm",
        "model": {"pretrained": str(folder / "model")},
        "train_input": {
            **chat,
            "max_sequence_length": 140,
            "batch_size": 2,
            "chat_template": str(folder / "template.jinja"),
        },
        "eval_input": chat,
        "optimizer": {"optimizer_type": "adamw", "learning_rate": 1e-2, "max_gradient_norm": 1.0},
        "runconfig": {"max_steps": STEPS, "model_dir": str(out / "run"), "save_summary_steps": 1},
        **sections,
    }
    path = out / "params.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def trained(path):
    """Runs train_and_eval; returns the folder of the run and the loss of its evaluation."""
    run.main(["-m", "train_and_eval", "-p", str(path)])
    out = path.parent / "run"
    return out, json.loads((out / "eval/metrics.jsonl").read_text().splitlines()[-1])["loss"]


def loss_of(path, module):
    """The loss of a module over the evaluation data."""
    params = load_params(path)
    batches = data.make_batches(params.eval_input, False)
    total = count = 0.0
    for number in range(len(batches)):
        batch = batches.batch(number)
        tokens = int((batch["labels"] != -100).sum())
        with torch.no_grad():
            total += float(loss_function(params)(module.eval(), batch)) * tokens
        count += tokens
    return total / count


def exported(arguments):
    """Runs `cerebras-tf convert export`."""
    import argparse

    parser = argparse.ArgumentParser()
    export.add_arguments(parser)
    export.run(parser.parse_args([str(each) for each in arguments]))


@pytest.mark.parametrize("memoryx", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_lora_of_a_run_is_opened_by_peft_and_merged_as_peft_does(folder, tmp_path, memoryx):
    peft = pytest.importorskip("peft", reason="peft is a peer")
    path = write_params(
        folder, tmp_path, lora={"rank": 2, "alpha": 4, "targets": ["q_proj", "up_proj"]}
    )
    given = ["--set", f"runconfig.memoryx_dir={tmp_path / 'memoryx'}"] if memoryx else []
    run.main(["-m", "train_and_eval", "-p", str(path), *given])
    out = tmp_path / "run"
    loss = json.loads((out / "eval/metrics.jsonl").read_text())["loss"]
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    start = loss_of(path, base)
    model = peft.PeftModel.from_pretrained(base, out / "export")
    assert loss_of(path, model.base_model.model) == pytest.approx(loss, rel=1e-5) and loss < start
    exported([out, tmp_path / "merged", "--merge_lora", "--dtype", "float32"])
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    theirs = model.merge_and_unload().state_dict()
    for name, tensor in merged.state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-6, atol=1e-7, msg=name)
    names = set(TensorFile(out / f"step-00000{STEPS}" / "model.safetensors").regions)
    assert len(names) == 2 * 2 * 2 and all("lora_" in name for name in names)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert tokenizer.chat_template == chats.MARKED


def test_a_run_exports_a_folder_of_transformers_and_continues_from_it(folder, tmp_path):
    path = write_params(folder, tmp_path, export={"dtype": "float32", "max_shard_gb": 5e-6})
    out, loss = trained(path)
    assert len(list((out / "export").glob("*.safetensors"))) > 1
    module = transformers.AutoModelForCausalLM.from_pretrained(out / "export")
    assert loss_of(path, module) == pytest.approx(loss, rel=1e-5)
    exported([out / f"step-00000{STEPS}", tmp_path / "half"])
    half = TensorFile(tmp_path / "half" / "model.safetensors").regions.values()
    assert {region.dtype for region in half} == {"bfloat16"}  # as in the folder
    with raises(CheckpointError, "--overwrite"):
        exported([out, tmp_path / "half"])
    run.main(
        [
            "-m",
            "eval",
            "-p",
            str(path),
            "-o",
            str(tmp_path / "other"),
            "--set",
            f"model.pretrained={out / 'export'}",
        ]
    )
    again = json.loads((tmp_path / "other/eval/metrics.jsonl").read_text())
    assert again["loss"] == pytest.approx(loss, rel=1e-6) and again["step"] == 0


def test_a_model_of_random_weights_is_exported(folder, tmp_path):
    config = {"model_type": "llama", "vocab_size": 266, **SMALL, "tie_word_embeddings": True}
    path = write_params(folder, tmp_path, model={"config": config}, export={"dtype": "bfloat16"})
    tree = yaml.safe_load(path.read_text())
    tree["train_input"]["tokenizer"] = str(folder / "model")
    tree["eval_input"]["tokenizer"] = str(folder / "model")
    path.write_text(yaml.safe_dump(tree))
    out, loss = trained(path)
    module = transformers.AutoModelForCausalLM.from_pretrained(out / "export", dtype=torch.float32)
    assert module.config.tie_word_embeddings
    assert loss_of(path, module) == pytest.approx(loss, rel=1e-2)  # bfloat16
    tokenizer = transformers.AutoTokenizer.from_pretrained(out / "export")
    assert tokenizer.chat_template == chats.MARKED


@pytest.mark.parametrize(
    "name",
    [
        "hf_sequence_classification",
        pytest.param("hf_extractive_summarization", marks=pytest.mark.slow),
    ],
)
def test_heads_that_the_folder_lacks_are_trained_and_exported(name, tmp_path):
    tree = tuning_tree(name, tmp_path, {"hidden_size": 16})
    torch.manual_seed(0)
    keys = tree["model"].pop("config")
    del keys["model_type"]
    transformers.BertForMaskedLM(transformers.BertConfig(**keys)).save_pretrained(
        tmp_path / "model"
    )
    tree["model"]["pretrained"] = str(tmp_path / "model")
    tree["lora"] = {"rank": 2}
    tree["export"] = {"merge_lora": True}
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(tree))
    run.main(["-m", "train_and_eval", "-p", str(path)])
    out = tmp_path / "out"
    loss = json.loads((out / "eval/metrics.jsonl").read_text())["loss"]
    transformers.AutoModel.from_pretrained(out / "export")
    tree |= {"lora": None, "export": {}}
    tree["model"]["pretrained"] = str(out / "export")
    path.write_text(yaml.safe_dump(tree))
    run.main(["-m", "eval", "-p", str(path), "-o", str(tmp_path / "other")])
    again = json.loads((tmp_path / "other/eval/metrics.jsonl").read_text())["loss"]
    assert again == pytest.approx(loss, rel=1e-5)


def test_weights_stay_in_their_files(folder, tmp_path):
    params = load_params(write_params(folder, tmp_path, lora={}))
    model = LoadedModel(params)
    frozen = [p for p in model.module.parameters() if not p.requires_grad]
    assert frozen and all(p.is_meta for p in frozen)
    assert {r.dtype for r in model.weights().values()} == {"bfloat16"}


@pytest.mark.parametrize(
    "sections, facts",
    [
        ({"export": {"merge_lora": True}}, ["export.merge_lora", "lora"]),
        ({"lora": {}, "export": {"dtype": "float16"}}, ["export.dtype"]),
        ({"lora": {"rank": 0}}, ["lora.rank"]),
        ({"lora": {"targets": ["queries"]}}, ["queries", "q_proj"]),
        ({"lora": {}, "model": {"config": {"model_type": "llama"}}}, ["lora", "model.pretrained"]),
    ],
)
def test_settings_that_do_not_fit_are_refused(folder, tmp_path, sections, facts):
    with raises(ConfigError, *facts):
        LoadedModel(load_params(write_params(folder, tmp_path, **sections)))
