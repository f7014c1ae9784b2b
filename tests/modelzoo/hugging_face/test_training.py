"""Transformers models train on the wafer as PyTorch does, resume, evaluate and generate."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from cerebras_tf.api import TorchModel, TorchTraining, TrainingSettings
from cerebras_tf.errors import CheckpointError, DataError
from modelzoo.commands import generate
from modelzoo.common.config.params import load_params
from modelzoo.common.data.preparation.examples import encode_example
from modelzoo.common.data.preparation.record_stream import RecordStream
from modelzoo.common.generate.transformers_decoder import CACHE, on_wafer
from modelzoo.common.train import run
from modelzoo.hugging_face import data, preparation
from modelzoo.hugging_face.model import input_names, loss_function, make_module, score_function
from modelzoo.hugging_face.optimizers import learning_rate, make_optimizer
from tests.messages import raises
from tests.modelzoo.hugging_face import chats

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
STEPS, LENGTH = 3, 24


def load(name, small=True, **others):
    """A params file of configs/, at a small size."""
    given = {f"model.config.{key}": value for key, value in SMALL.items()} if small else {}
    if "gemma3" in name:
        given["model.config.layer_types"] = ["sliding_attention", "full_attention"]
    given |= {"train_input.max_sequence_length": LENGTH, "train_input.batch_size": 2, **others}
    texts = [(key, yaml.safe_dump(value).removesuffix("...\n")) for key, value in given.items()]
    return load_params(CONFIGS / f"params_hf_{name}.yaml", settings=texts)


def assert_trains_as_pytorch(params, steps=STEPS):
    """Trains on the wafer and with PyTorch on the same batches."""
    module, twin = make_module(params), make_module(params)
    source, loss = (
        data.make_batches(params.train_input, True, input_names(module)),
        loss_function(params),
    )
    batches = [source.batch(number) for number in range(steps)]
    (optimizer, scheduler, update), (other, rates, step) = (
        make_optimizer(params, each) for each in (module, twin)
    )
    training = TorchTraining(TorchModel(module, batches[0], optimizer, loss, update))
    losses = []
    for batch in batches:
        expected = loss(twin, batch)
        other.zero_grad()
        expected.backward()
        step()
        losses.append((training.step(batch)["loss"], float(expected.detach())))
        scheduler.step()
        rates.step()
    training.close()
    np.testing.assert_allclose(*np.array(losses).T, rtol=1e-5)
    return batches


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "gemma3",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3", "mistral", "smollm")),
    ],
)
def test_families_train_as_pytorch_does(name):
    assert_trains_as_pytorch(load(f"{name}_tiny"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model with a tokenizer and conversations."""
    path = tmp_path_factory.mktemp("chats")
    tokenizer = chats.make_tokenizer()
    tokenizer.save_pretrained(path / "model")
    torch.manual_seed(0)
    ids = {
        f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")
    }
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), **SMALL, **ids)
    transformers.LlamaForCausalLM(config).save_pretrained(path / "model")
    rows = [{"messages": chats.messages(turns)} for turns in chats.CONVERSATIONS * 3]
    chats.write_rows(path / "train.jsonl", rows)
    return path


def chat_params(folder, **others):
    keys = {
        "model.pretrained": str(folder / "model"),
        "train_input.data_dir": str(folder / "train.jsonl"),
        "eval_input.data_dir": str(folder / "train.jsonl"),
        "train_input.max_sequence_length": 140,
    }
    return load("chat_tiny", small=False, **keys, **others)


def test_training_continues_after_its_last_batch_and_evaluation_starts_again(folder):
    params = load("llama_tiny", **{"train_input.batch_size": 500})
    training = data.make_batches(params.train_input, True)
    evaluation = data.make_batches(params.eval_input, False)
    count = training.batches_per_epoch
    assert count > 1
    first = next(iter(training))["input_ids"]
    resumed = data.make_batches(params.train_input, True)
    resumed.load_state_dict(training.state_dict())
    for batches in (training, resumed):
        rest = [batch["input_ids"] for batch in batches]
        assert len(rest) == count - 1 and not torch.equal(first, rest[0])
        assert torch.equal(rest[0], training.batch(1)["input_ids"])
    assert next(iter(training))["input_ids"].shape == first.shape  # of the next epoch
    starts = [next(iter(evaluation))["input_ids"] for _ in range(2)]
    assert torch.equal(*starts)


def test_packed_conversations_have_the_losses_of_single_ones(folder):
    """Attention is confined to each conversation, in the fused op."""
    losses, counts = {}, {}
    for packing in (True, False):
        params = chat_params(folder, **{"train_input.packing": packing})
        batches = assert_trains_as_pytorch(params, steps=1)
        assert ("position_ids" in batches[0]) is packing
        module = make_module(params).eval()
        source = data.make_batches(params.eval_input, False)
        scores = score_function(params)
        totals = [scores(module, source.batch(n)) for n in range(source.batches_per_epoch)]
        losses[packing] = float(sum(each["loss_sum"] for each in totals))
        counts[packing] = sum(each["loss_count"] for each in totals)
    assert counts[True] == counts[False]
    assert losses[True] == pytest.approx(losses[False], rel=1e-6)


def test_records_of_conversations_are_the_batches_of_their_text(folder, tmp_path):
    settings = preparation.ChatSettings(str(folder / "model"), max_seq_length=140)
    manifest = preparation.prepare([str(folder / "train.jsonl")], str(tmp_path), settings)
    assert manifest["counts"]["examples"] == 6
    given = {"train_input.shuffle": False, "train_input.batch_size": 1}
    text = chat_params(folder, **given).train_input
    keys = {"data_processor": "GptTfRecordsProcessor", "data_dir": str(tmp_path), "batch_size": 1}
    keys |= {"max_sequence_length": 140, "vocab_size": 266, "shuffle": False}
    records = load("llama_tiny", train_input=keys, eval_input=None).train_input
    first, second = (data.make_batches(section, True) for section in (text, records))
    assert first.batches_per_epoch == second.batches_per_epoch == manifest["counts"]["records"]
    for number in range(first.batches_per_epoch):
        one, other = first.batch(number), second.batch(number)
        assert set(one) == set(other)
        assert all(torch.equal(one[name], other[name]) for name in one)


def command(mode, params_path, out, *flags):
    run.main(["-m", mode, "-p", str(params_path), "-o", str(out), *flags])


def test_commands_train_resume_and_evaluate(tmp_path):
    path = tmp_path / "params.yaml"
    tree = yaml.safe_load((CONFIGS / "params_hf_llama_tiny.yaml").read_text())
    tree["model"]["config"] |= SMALL
    tree["train_input"] |= {"max_sequence_length": LENGTH, "batch_size": 2}
    tree["runconfig"] |= {"max_steps": 4, "save_checkpoints_steps": 2, "eval_steps": 2}
    path.write_text(yaml.safe_dump(tree))
    command("train_and_eval", path, tmp_path / "whole")
    events = b"".join(file.read_bytes() for file in (tmp_path / "whole").glob("events*"))
    assert events.count(b"eval/loss") == 2  # of step 2, and with the scores of step 4
    assert events.count(b"eval/accuracy") == 1
    command("train", path, tmp_path / "parts", "--steps", "2")
    command("train", path, tmp_path / "parts")
    files = [tmp_path / out / "step-000004" / "model.safetensors" for out in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert "tokens" in json.loads((tmp_path / "parts/trained_on.json").read_text())["data"][0]
    command("eval", path, tmp_path / "whole")
    rows = [json.loads(line) for line in (tmp_path / "whole/eval/metrics.jsonl").open()]
    assert [row["step"] for row in rows] == [4, 4] and rows[0] == rows[1]
    assert 0 < rows[0]["accuracy"] < 1 and 3 < rows[0]["loss"] < 6
    with raises(CheckpointError, "weights"):
        command("eval", path, tmp_path / "whole", "--set", "model.config.num_hidden_layers=3")


# ---- fine-tunings of BERT

BERT = {"model_type": "bert", "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2}
BERT |= {"num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 32}
BERT |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SENTENCES = 3
TASKS = {
    "hf_sequence_classification": (
        "GlueTfRecordsProcessor",
        {"label": (1, 2), "is_matched": (1, 2)},
    ),
    "hf_token_classification": ("NerDataProcessor", {"label_ids": (12, 3)}),
    "hf_question_answering": (
        "QuestionAnsweringDataProcessor",
        {"start_positions": (1, 5), "end_positions": (1, 5)},
    ),
    "hf_extractive_summarization": (
        "BertSumTfRecordsProcessor",
        {"cls_indices": (SENTENCES, 5), "labels": (SENTENCES, 2), "cls_weights": None},
    ),
}


def write_records(path, columns, count=9, length=12):
    generator = np.random.default_rng(0)
    stream = RecordStream(path)
    for row in range(count):
        mask = (np.arange(length) < 6 + row % 4).astype(int)
        features = {
            "input_ids": generator.integers(1, 50, length) * mask,
            "input_mask": mask,
            "segment_ids": (np.arange(length) > 4) * mask,
        }
        for name, kind in columns.items():
            features[name] = (
                np.float32([1, 1, 0]) if kind is None else generator.integers(0, kind[1], kind[0])
            )
        stream.write(encode_example(features))
    stream.close()


def tuning_tree(name, folder, config=None, **others):
    """The params of a fine-tuning, whose records it writes."""
    processor, columns = TASKS[name]
    write_records(folder / "a.tfrecords", columns)
    given = {"data_processor": processor, "data_dir": str(folder), "max_sequence_length": 12}
    given |= {"batch_size": 3, "vocab_size": 50, **others}
    if "summarization" in name:
        given["max_cls_tokens"] = SENTENCES
    config = {**BERT, **(config or {})}
    return {
        "model_name": name,
        "model": {"config": config, **({"num_labels": 3} if "token" in name else {})},
        "train_input": given,
        "eval_input": {"data_dir": str(folder)},
        "optimizer": {"optimizer_type": "adamw", "learning_rate": 1e-3, "max_gradient_norm": 1.0},
        "runconfig": {"max_steps": 3, "model_dir": str(folder / "out")},
    }


def tuning_params(name, folder, config=None, **others):
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump(tuning_tree(name, folder, config, **others)))
    return load_params(path)


@pytest.mark.parametrize("name", TASKS)
def test_fine_tunings_train_and_score_as_pytorch_does(name, tmp_path):
    params = tuning_params(name, tmp_path)
    batches = assert_trains_as_pytorch(params, steps=2)
    assert batches[0]["input_ids"].shape[1] < 12  # cropped to the longest example
    module = make_module(params).eval()
    source = data.make_batches(params.eval_input, False, input_names(module))
    assert source.batches_per_epoch == 3
    scores = score_function(params)
    training = TorchTraining(TorchModel(module, source.batch(0), loss=scores))
    batch = source.batch(1)
    expected, found = scores(module, batch), training.step(batch)
    assert set(found) == set(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value.detach(), rtol=1e-5, atol=1e-6, err_msg=key)


def test_models_without_segments_get_none(tmp_path):
    params = tuning_params("hf_sequence_classification", tmp_path, {"type_vocab_size": 1})
    module = make_module(params)
    batch = data.make_batches(params.train_input, True, input_names(module)).batch(0)
    assert set(batch) == {"input_ids", "attention_mask", "labels"}


def test_records_of_another_length_are_refused(tmp_path):
    params = tuning_params("hf_question_answering", tmp_path, max_sequence_length=8)
    with raises(DataError, "a.tfrecords", "input_ids", "12"):
        data.make_batches(params.train_input, True)


# ---- learning rates, generation


def test_learning_rates_are_those_of_the_other_models():
    pytest.importorskip("tensorflow")
    from modelzoo.common.optimizers import schedules

    tf = pytest.importorskip("tensorflow.compat.v1")
    pieces = load("llama_tiny").optimizer.learning_rate
    steps = [0, 1, 19, 20, 21, 150, 199, 500]
    with tf.Graph().as_default(), tf.Session() as session:
        rates = session.run([schedules.learning_rate(pieces, tf.constant(step)) for step in steps])
    np.testing.assert_allclose([learning_rate(pieces, step) for step in steps], rates, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_greedy_tokens_are_those_of_transformers(name):
    """Two prompts of different lengths, padded on the left; more tokens than a window."""
    module = make_module(load(f"{name}_tiny", **{"model.config.initializer_range": 0.5})).eval()
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 6)))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    given = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    given["eos_token_id"] = None
    expected = module.generate(ids, **{CACHE: transformers.DynamicCache()}, **given)
    with on_wafer(module, TrainingSettings()):
        found = module.generate(ids, **{CACHE: transformers.DynamicCache()}, **given)
    assert found.tolist() == expected.tolist()
    assert "forward" not in vars(module)


def test_generate_prints_a_chat(folder, capsys):
    """Sampled tokens on the wafer are those of PyTorch with the same seed."""
    texts = []
    for flags in ([], ["--device", "/cpu:0"]):
        parser = argparse.ArgumentParser()
        generate.add_arguments(parser)
        prompt = ["--chat", "--prompt", "Why?", "--max_new_tokens", "8", "--seed", "3"]
        generate.run(parser.parse_args(["-o", str(folder / "model"), *prompt, *flags]))
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and texts[0].strip()
