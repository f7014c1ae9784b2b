"""Hugging Face folders and LoRA: against transformers and peft, and errors of wrong folders."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")
transformers = pytest.importorskip("transformers", reason="transformers is an extra")

from cerebras_tf.errors import CheckpointError, ConfigError
from cerebras_tf.memoryx.safetensors_file import TensorFile, write_weights
from cerebras_tf.torch import fit
from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.lora import LoraLinear, LoraSettings, add_lora
from cerebras_tf.torch_step.pretrained import PretrainedModel
from cerebras_tf.torch_step.settings import TrainingSettings
from cerebras_tf.torch_step.training import TorchTraining
from tests.messages import names, raises
from tests.torch_step.eager import GRADIENT, LOSS
from tests.torch_step.folders import NAMES, batch, loaded, write

SETTINGS = LoraSettings(rank=3, alpha=6.0)
# What peft adds to names.
_OURS = re.compile(r"^base_model\.model\.|\.modules_to_save\.default|\.default\.weight")
# Keys' biases, whose gradients are rounding.
_NOISE = re.compile(r"(key|k_proj|c_attn|query_key_value)\.bias")


def trained(pretrained, settings=None, steps=3, gradients=(), rate=1e-2):
    """A training after some steps, and the results of the steps."""
    optimizer = torch.optim.AdamW(pretrained.trained(), lr=rate)
    model = TorchModel(pretrained.module, batch(), optimizer, stored=pretrained.stored())
    training = TorchTraining(model, settings, pretrained.weights(), gradients)
    return training, [training.step(batch(number)) for number in range(steps)]


def eager(module, steps=3, rate=1e-2):
    """Losses of the same steps by torch."""
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=rate)
    losses = []
    for number in range(steps):
        optimizer.zero_grad()
        loss = module(**batch(number)).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def losses_of(results):
    return [found["loss"] for found in results]


def tensors_of(folder):
    """Bytes of all tensors of a folder, by name, and their dtypes."""
    files = [TensorFile(path) for path in sorted(folder.glob("*.safetensors"))]
    return {n: (r.dtype, r.read().tobytes()) for file in files for n, r in file.regions.items()}


@pytest.mark.parametrize(
    "name,dtype",
    [
        ("llama", "float32"),
        ("gpt2", "bfloat16"),
        ("bert", "bfloat16"),
        *(
            pytest.param(name, "bfloat16", marks=pytest.mark.slow)
            for name in NAMES
            if name not in ("gpt2", "bert")
        ),
    ],
)
def test_a_folder_trains_as_transformers_loads_it_and_is_written_for_transformers(
    tmp_path, name, dtype
):
    folder = write(name, tmp_path / "model", dtype, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    pretrained, theirs = PretrainedModel(folder), loaded(folder)
    assert all(p.is_meta for p in pretrained.module.parameters()) and not pretrained.new
    for (key, buffer), (other, expected) in zip(
        pretrained.module.named_buffers(), theirs.named_buffers()
    ):
        assert key == other and torch.equal(buffer, expected)
    training, results = trained(pretrained, rate=1e-3)
    np.testing.assert_allclose(losses_of(results), eager(theirs, rate=1e-3), rtol=LOSS)
    pretrained.save(tmp_path / "out", training, "float32", max_shard_bytes=20_000)
    again = loaded(tmp_path / "out")
    for key, parameter in theirs.named_parameters():
        found = dict(again.named_parameters())[key]
        if not _NOISE.search(key):
            torch.testing.assert_close(found, parameter, rtol=1e-4, atol=2e-5, msg=key)
    assert set(tensors_of(tmp_path / "out")) == set(tensors_of(folder))
    assert (tmp_path / "out" / "tokenizer.json").read_text() == '{"version": "1.0"}'
    assert (tmp_path / "out" / "generation_config.json").exists() == (name != "bert")
    assert not (tmp_path / "out" / "training_args.bin").exists()


def test_what_is_not_trained_stays_in_its_files_bit_for_bit(tmp_path):
    folder = write("llama", tmp_path / "model", "bfloat16", max_shard_size="20KB")
    before = tensors_of(folder)
    found = {}
    for where, settings in (
        ("memory", None),
        ("files", TrainingSettings(memoryx_dir=str(tmp_path / "memoryx"), memoryx_ram_gb=0.001)),
    ):
        pretrained = PretrainedModel(folder)
        for name, parameter in pretrained.module.named_parameters():
            parameter.requires_grad_("layers.1.mlp" in name)
        training, results = trained(pretrained, settings)
        specs = training.store.specs
        assert sum("/" in name for name in specs) == 3 * 3  # three weights have state
        assert specs["lm_head.weight"].type.dtype == "bfloat16"
        assert training.store.total_resident_bytes < 300_000
        pretrained.save(tmp_path / where, training, max_shard_bytes=20_000)
        training.close()
        found[where] = losses_of(results), tensors_of(tmp_path / where)
    assert found["memory"] == found["files"] and tensors_of(folder) == before
    with raises(CheckpointError, folder, "another folder"):
        pretrained.save(folder, training, overwrite=True)
    changed = {name for name in before if found["files"][1][name] != before[name]}
    assert changed == {f"model.layers.1.mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    config = json.loads((tmp_path / "files" / "config.json").read_text())
    assert config == json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    "name,precision", [("llama", "float32"), ("llama", "bfloat16"), ("gpt2", "float32")]
)
def test_lora_trains_as_in_torch_and_is_merged(tmp_path, name, precision):
    folder = write(name, tmp_path / "model", "bfloat16")
    pretrained, theirs = PretrainedModel(folder), loaded(folder)
    for module in (pretrained.module, theirs):
        torch.manual_seed(5)
        if module is theirs:
            add_lora(theirs, SETTINGS, {})
        else:
            pretrained.add_lora(SETTINGS)
    training, results = trained(pretrained, TrainingSettings(precision=precision))
    np.testing.assert_allclose(losses_of(results), eager(theirs), rtol=LOSS)
    pretrained.save(tmp_path / "merged", training, "float32")
    with torch.no_grad():
        found, expected = (m(**batch(9)).loss for m in (loaded(tmp_path / "merged"), theirs))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.slow), "bert"])
def test_peft_opens_the_adapter_and_computes_the_same_gradients(tmp_path, name):
    peft = pytest.importorskip("peft", reason="peft is a peer")
    kind = "BertForSequenceClassification" if name == "bert" else None
    folder = write(name, tmp_path / "model")
    pretrained = PretrainedModel(folder, kind)
    pretrained.add_lora(SETTINGS)

    def given(number):
        labels = {"labels": torch.tensor([0, 1])} if name == "bert" else {}
        return {**batch(number), **labels}

    optimizer = torch.optim.AdamW(pretrained.trained(), lr=1e-2)
    model = TorchModel(pretrained.module, given(0), optimizer, stored=pretrained.stored())
    training = TorchTraining(model, None, pretrained.weights(), model.exported.trained)
    training.step(given(0))
    pretrained.save_adapter(tmp_path / "adapter", training)
    base = loaded(folder, kind)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True)
    loss = theirs(**given(1)).loss
    loss.backward()
    found = training.step(given(1))
    assert found["loss"] == pytest.approx(float(loss.detach()), rel=LOSS)
    parameters = dict(theirs.named_parameters()).items()
    gradients = {_OURS.sub("", key): p.grad for key, p in parameters if p.grad is not None}
    ours = {key.removeprefix("gradient/"): g for key, g in found.items() if key != "loss"}
    assert gradients.keys() == ours.keys() and len(ours) > 12
    largest = max(float(g.abs().max()) for g in gradients.values())
    for key, gradient in gradients.items():
        np.testing.assert_allclose(ours[key], gradient, rtol=0, atol=GRADIENT * largest)


def test_an_adapter_has_the_names_of_peft(tmp_path):
    pretrained = PretrainedModel(write("llama", tmp_path / "model"))
    pretrained.add_lora(LoraSettings(rank=2, alpha=4, targets=("q_proj", "v_proj")))
    assert pretrained.module.model.layers[0].self_attn.q_proj.lora_A.shape == (2, 32)
    training, _ = trained(pretrained, steps=1)
    pretrained.save_adapter(tmp_path / "adapter", training)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["q_proj", "v_proj"] and config["task_type"] == "CAUSAL_LM"
    assert (config["r"], config["lora_alpha"], config["fan_in_fan_out"]) == (2, 4, False)
    found = TensorFile(tmp_path / "adapter" / "adapter_model.safetensors").regions
    name = "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"
    assert len(found) == 8 and found[name].type.shape == (16, 2)
    with raises(CheckpointError, "adapter_config.json"):
        pretrained.save_adapter(tmp_path / "adapter", training)


def adapter_of_peft(folder, target, kind=None, **settings):
    """Writes an adapter whose B is not zero; returns the model that peft trains on."""
    peft = pytest.importorskip("peft", reason="peft is a peer")
    torch.manual_seed(6)
    task = "SEQ_CLS" if kind else "CAUSAL_LM"
    settings = {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"], **settings}
    config = peft.LoraConfig(task_type=task, init_lora_weights=False, **settings)
    theirs = peft.get_peft_model(loaded(folder, kind), config)
    theirs.save_pretrained(target)
    return theirs


@pytest.mark.parametrize(
    "name,settings",
    [
        ("llama", {}),
        ("llama", {"use_rslora": True, "target_modules": "all-linear"}),
        ("llama", {"target_modules": r".*\.1\..*(up|down)_proj"}),
        ("llama", {"layers_to_transform": [1]}),
        ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
    ],
    ids=str,
)
def test_training_continues_from_an_adapter_of_peft(tmp_path, name, settings):
    folder = write(name, tmp_path / "model")
    theirs = adapter_of_peft(folder, tmp_path / "adapter", **settings)
    pretrained = PretrainedModel(folder)
    pretrained.load_adapter(tmp_path / "adapter")
    training, results = trained(pretrained)
    np.testing.assert_allclose(losses_of(results), eager(theirs), rtol=LOSS)
    pretrained.save_adapter(tmp_path / "again", training)
    again = PretrainedModel(folder)
    again.load_adapter(tmp_path / "again")
    with torch.no_grad():
        expected = float(theirs(**batch(9)).loss)
    assert trained(again, steps=0)[0].step(batch(9))["loss"] == pytest.approx(expected, rel=1e-5)


def test_an_adapter_has_the_new_classifier(tmp_path):
    folder, kind = write("llama", tmp_path / "model"), "AutoModelForSequenceClassification"
    theirs = adapter_of_peft(folder, tmp_path / "adapter", kind)
    pretrained = PretrainedModel(folder, kind)
    pretrained.load_adapter(tmp_path / "adapter")
    score = theirs.base_model.model.score.modules_to_save.default.weight
    assert torch.equal(pretrained.new["score.weight"], score)
    plain = PretrainedModel(folder)
    with raises(CheckpointError, "adapter_model.safetensors", "also score.weight"):
        plain.load_adapter(tmp_path / "adapter")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """A folder and an adapter of it."""
    path = tmp_path_factory.mktemp("adapter")
    pretrained = PretrainedModel(write("llama", path / "model"))
    pretrained.add_lora(LoraSettings(rank=3, alpha=6.0, targets=("q_proj",)))
    training, _ = trained(pretrained, steps=0)
    training.fill()
    pretrained.save_adapter(path / "adapter", training)
    return path


def test_adapters_of_other_models_are_refused(adapter, tmp_path):
    other = PretrainedModel(write("gpt2", tmp_path / "other"))
    with raises(CheckpointError, "GPT2LMHeadModel", "model.layers.0.self_attn.q_proj"):
        other.load_adapter(adapter / "adapter")


def spoiled(folder, key, value):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))


@pytest.mark.parametrize(
    "spoil,facts",
    [
        (lambda f: (f / "adapter_config.json").unlink(), ["adapter_config.json", "No such file"]),
        (lambda f: (f / "adapter_model.safetensors").unlink(), ["adapter_model.safetensors"]),
        (lambda f: spoiled(f, "peft_type", "LOHA"), ["peft_type LOHA"]),
        (lambda f: spoiled(f, "use_dora", True), ["use_dora"]),
        (lambda f: spoiled(f, "alpha_pattern", {"q_proj": 3}), ["alpha_pattern", "q_proj"]),
        (lambda f: spoiled(f, "init_lora_weights", "pissa"), ["init_lora_weights", "pissa"]),
        (lambda f: spoiled(f, "bias", "all"), ["bias all"]),
        (lambda f: spoiled(f, "r", 4), ["lora_A", [3, 32], [4, 32]]),
        (lambda f: spoiled(f, "r", 0), ["lora.rank", "adapter_config.json"]),
    ],
)
def test_wrong_adapters_are_refused(adapter, tmp_path, spoil, facts):
    shutil.copytree(adapter / "adapter", tmp_path / "adapter")
    spoil(tmp_path / "adapter")
    with raises(CheckpointError, tmp_path / "adapter", *facts):
        PretrainedModel(adapter / "model").load_adapter(tmp_path / "adapter")


def test_a_new_classifier_is_trained_and_written(tmp_path, caplog):
    folder = write("bert", tmp_path / "model", "bfloat16")
    kind = "AutoModelForSequenceClassification"
    pretrained = PretrainedModel(folder, kind, num_labels=3)
    assert names(caplog.messages, "classifier.weight", "bert.pooler.dense.weight")
    assert pretrained.new["classifier.weight"].std() > 0.01
    assert not pretrained.new["classifier.bias"].any()
    given = {**batch(), "labels": torch.tensor([0, 2])}
    optimizer = torch.optim.AdamW(pretrained.trained(), lr=1e-3)
    model = TorchModel(pretrained.module, given, optimizer, stored=pretrained.stored())
    training = TorchTraining(model, None, pretrained.weights())
    training.step(given)
    pretrained.save(tmp_path / "out", training)
    again = loaded(tmp_path / "out")
    assert type(again).__name__ == "BertForSequenceClassification" and again.num_labels == 3
    with torch.no_grad():
        expected = float(again(**given).loss)
    assert training.step(given)["loss"] == pytest.approx(expected, rel=2e-2)  # bfloat16 weights


def test_lora_resumes_without_the_weights_that_do_not_train(tmp_path):
    folder = write("llama", tmp_path / "model", "bfloat16")

    def begun(source, seed=3):
        pretrained = PretrainedModel(source)
        torch.manual_seed(seed)
        pretrained.add_lora(SETTINGS)
        return trained(pretrained, steps=0)[0]

    first = begun(folder)
    first.step(batch(0))
    first.save(tmp_path / "checkpoint")
    expected = first.step(batch(1))["loss"]
    assert len(TensorFile(tmp_path / "checkpoint" / "model.safetensors").regions) == 2 * 7 * 2
    again = begun(folder, seed=4)
    again.restore(tmp_path / "checkpoint")
    assert again.step(batch(1))["loss"] == expected
    other = begun(write("llama", tmp_path / "other", "bfloat16", seed=1))
    with raises(CheckpointError, "weights that are not trained", tmp_path / "other"):
        other.restore(tmp_path / "checkpoint")


@pytest.mark.parametrize("lora", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_fit_trains_a_folder_and_its_checkpoint_is_written(tmp_path, lora):
    folder = write("llama", tmp_path / "model", "bfloat16")

    def fitted(steps, model_dir):
        pretrained = PretrainedModel(folder)
        if lora:
            torch.manual_seed(2)
            pretrained.add_lora(SETTINGS)
        optimizer = torch.optim.AdamW(pretrained.trained(), lr=1e-2)
        loader = [batch(number) for number in range(4)]
        options = {"model_dir": tmp_path / model_dir, "eval_loader": loader[:1], "log_every": 1}
        return pretrained, fit(pretrained, optimizer, loader, steps=steps, **options)

    pretrained, result = fitted(4, "whole")
    if not lora:
        fitted(2, "cut")
        _, resumed = fitted(4, "cut")
        assert resumed.losses[4] == result.losses[4] and resumed.evaluations == result.evaluations
    pretrained.save(tmp_path / "out", result.checkpoint, "float32")
    with torch.no_grad():
        loss = float(loaded(tmp_path / "out")(**batch(0)).loss)
    assert loss == pytest.approx(result.evaluations[4], rel=1e-5)
    if lora:
        pretrained.save_adapter(tmp_path / "a", result.checkpoint)
        pretrained.save_adapter(tmp_path / "b")
        names = [tmp_path / folder / "adapter_model.safetensors" for folder in "ab"]
        assert names[0].read_bytes() == names[1].read_bytes()
    else:
        with raises(ConfigError, "model.embed_tokens.weight", "without"):
            pretrained.save(tmp_path / "none")
        other = PretrainedModel(write("gpt2", tmp_path / "other"))
        with raises(CheckpointError, result.checkpoint, "transformer.wte.weight"):
            other.save(tmp_path / "none", result.checkpoint)


def edited(key, value):
    def edit(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, key: value}))

    return edit


def rewritten(change):
    """Writes the file again with other types or tensors."""

    def edit(folder):
        file = TensorFile(folder / "model.safetensors")
        tensors = {name: file.read(name) for name in file.regions}
        change(tensors)
        types = {n: file.regions[n].type.with_shape(array.shape) for n, array in tensors.items()}
        write_weights(folder / "model.safetensors", types, tensors.items())

    return edit


def renamed_type(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"dtype":"F32"', b'"dtype":"F4" ', 1))


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("spoil", "error", "facts"),
    [
        (lambda f: (f / "config.json").unlink(), CheckpointError, ("config.json", "No such file")),
        (lambda f: (f / "model.safetensors").unlink(), CheckpointError, ("model.safetensors",)),
        (edited("quantization_config", {"bits": 4}), ConfigError, ("quantization_config", "bits")),
        (edited("model_type", "nothing"), ConfigError, ("'nothing'", "config.json")),
        (edited("architectures", ["No"]), ConfigError, ("class No", "llama")),
        (edited("hidden_size", 64), CheckpointError, ("model.embed_tokens.weight", [97, 64])),
        (edited("num_hidden_layers", 3), CheckpointError, ("model.layers.2", "LlamaForCausalLM")),
        (rewritten(lambda t: t.pop(NORM)), CheckpointError, (NORM, "LlamaForCausalLM")),
        (
            rewritten(lambda t: t.update({NORM: np.ones(5, np.float32)})),
            CheckpointError,
            (NORM, [32], [5]),
        ),
        (renamed_type, CheckpointError, ("F4", "float32, float16, bfloat16")),
    ],
)
def test_wrong_folders_are_refused(tmp_path, spoil, error, facts):
    folder = write("llama", tmp_path / "model")
    spoil(folder)
    with raises(error, folder, *facts):
        PretrainedModel(folder)


def test_shards_that_are_missing_are_refused(tmp_path):
    folder = write("llama", tmp_path / "model", max_shard_size="20KB")
    shards = sorted(folder.glob("*.safetensors"))
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["lm_head.weight"] = shards[0].name
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if "lm_head.weight" not in TensorFile(shards[0]).regions:
        with raises(CheckpointError, shards[0], "lm_head.weight"):
            PretrainedModel(folder)
    shards[1].unlink()
    with raises(CheckpointError, shards[1], "No such file"):
        PretrainedModel(folder)


@pytest.mark.parametrize(
    ("model", "settings", "facts"),
    [
        ("llama", {"rank": 0}, ("rank", 0)),
        ("llama", {"dropout": 1.0}, ("dropout", 1.0)),
        ("llama", {"targets": ()}, ("targets",)),
        ("llama", {"targets": ("q_proj", "query")}, ("query", "q_proj, k_proj")),
        ("llama", {"targets": "embed_tokens"}, ("embed_tokens", "Embedding")),
        ("qwen", {"targets": "lm_head"}, ("lm_head", "tied")),
    ],
)
def test_wrong_settings_of_lora_are_refused(tmp_path, model, settings, facts):
    pretrained = PretrainedModel(write(model, tmp_path / "model"))
    with raises(ConfigError, *facts):
        pretrained.add_lora(LoraSettings(**settings))


def test_targets_are_all_linear_layers_but_the_output(tmp_path):
    pretrained = PretrainedModel(write("qwen", tmp_path / "model"))
    pretrained.add_lora(LoraSettings(dropout=0.25))
    layers = [n for n, m in pretrained.module.named_modules() if isinstance(m, LoraLinear)]
    assert len(layers) == 2 * 7 and not any("lm_head" in name for name in layers)
    with raises(ConfigError, "once"):
        pretrained.add_lora(SETTINGS)
    optimizer = torch.optim.AdamW(pretrained.trained(), lr=1e-2)
    model = TorchModel(pretrained.module, batch(), optimizer, stored=pretrained.stored())
    trainings = [TorchTraining(model, None, pretrained.weights()) for _ in range(2)]
    first, second = ([each.step(batch(n))["loss"] for n in range(2)] for each in trainings)
    assert first == second  # dropout is repeatable
