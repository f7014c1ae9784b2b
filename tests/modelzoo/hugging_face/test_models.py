"""Models of the params files: published sizes, families that train, keys that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from cerebras_tf.errors import ConfigError
from modelzoo.common.config.params import load_params, params_from_dict
from modelzoo.hugging_face.model import count_parameters, make_config, make_module
from modelzoo.hugging_face.params import PARAMS
from tests.messages import raises

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = ROOT / "configs"
# As the model cards of the published models and their safetensors files say.
PUBLISHED = {
    "smollm2_135m": 134_515_008,
    "smollm2_360m": 361_821_120,
    "smollm2_1p7b": 1_711_376_384,
    "qwen3_0p6b": 596_049_920,
    "qwen3_4b": 4_022_468_096,
    "llama3p2_1b": 1_235_814_400,
    "llama3p2_3b": 3_212_749_824,
    "llama3p1_8b": 8_030_261_248,
}

SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads")
SIZES += ("intermediate_size",)


def tree(model, name="hf_causal_lm"):
    section = {"data_processor": "GptTextDataProcessor", "max_sequence_length": 8, "batch_size": 2}
    return {
        "model_name": name,
        "model": model,
        "train_input": {**section, "vocab_size": 257},
        "optimizer": {"optimizer_type": "adamw", "learning_rate": 1e-3},
        "runconfig": {"max_steps": 3},
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_shapes_have_their_number_of_parameters(name):
    params = load_params(CONFIGS / f"params_hf_{name}.yaml")
    module = make_module(params, meta=True)
    assert count_parameters(module) == PUBLISHED[name]
    comment = (CONFIGS / f"params_hf_{name}.yaml").read_text()
    assert f"{PUBLISHED[name]:,} parameters" in comment


def test_positions_of_llama_3_are_scaled():
    params = load_params(CONFIGS / "params_hf_llama3p2_1b.yaml")
    rope = make_config(params).rope_parameters
    assert rope["rope_type"] == "llama3" and rope["factor"] == 32 and rope["rope_theta"] == 5e5


def test_page_lists_every_model_with_its_sizes():
    cells = {}
    for path in sorted(CONFIGS.glob("params_hf_*.yaml")):
        params = load_params(path)
        if params.model.pretrained is None:
            c = params.model.config
            sizes = [c[key] for key in SIZES]
            count = count_parameters(make_module(params, meta=True))
            name = path.stem.removeprefix("params_")
            cells[name] = [f"`{c['model_type']}`", *(f"{size:,}" for size in (*sizes, count))]
    assert {f"hf_{name}" for name in PUBLISHED} <= set(cells)
    page = (ROOT / "docs" / "reference" / "models.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page]
    found = {row[0].strip("`"): row[1:] for row in rows if row[0].startswith("`hf_")}
    assert {name: found.get(name) for name in cells} == cells


@pytest.mark.parametrize(
    "model, facts",
    [
        ({"config": {"model_type": "lama"}}, ["model_type", "lama", "llama"]),
        ({"config": {"model_type": "llama", "num_layers": 2}}, ["num_layers", "LlamaConfig"]),
        ({"config": {"model_type": "llama", "hidden_size": "big"}}, ["big"]),
        ({"config": {"hidden_size": 8}}, ["model.config", "model_type"]),
        ({"pretrained": "nowhere"}, ["nowhere", "config.json"]),
    ],
)
def test_wrong_models_are_refused(model, facts):
    with raises(ConfigError, *facts):
        make_config(params_from_dict(PARAMS["hf_causal_lm"], tree(model)))


@pytest.mark.parametrize(
    "changed, facts",
    [
        ({"runconfig": {"max_steps": 3, "multireplica": True}}, ["runconfig.multireplica"]),
        ({"optimizer": {"optimizer_type": "rmsprop", "learning_rate": 1}}, ["rmsprop"]),
        ({"sparsity": {"mask_type": "topk"}}, ["sparsity"]),
        (
            {"train_input": {**tree({})["train_input"], "vocab_size": "many"}},
            ["train_input.vocab_size", "many"],
        ),
    ],
)
def test_settings_without_effect_are_refused(changed, facts):
    given = {**tree({"config": {"model_type": "llama", "vocab_size": 257}}), **changed}
    with raises(ConfigError, *facts):
        params_from_dict(PARAMS["hf_causal_lm"], given)
