"""transformers makes attention masks only for rows that are not one sequence without padding."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")
transformers = pytest.importorskip("transformers")

from cerebras_tf.ir import TensorType
from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.training import TorchTraining

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 31}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
LENGTH = 12


def make(kind, **others):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SIZES, **others)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model.train()


def own_positions(model, batch):
    """Positions that restart, which the model is not given as a feature."""
    half = torch.arange(batch["input_ids"].shape[1] // 2)
    positions = torch.cat([half, half]).unsqueeze(0)
    return model(input_ids=batch["input_ids"], position_ids=positions, use_cache=False).logits


def features(model, batch):
    return model(**batch, use_cache=False).logits


def batch_of(rows, positions=None):
    ids = torch.from_numpy(np.random.default_rng(rows).integers(0, 31, (rows, LENGTH)))
    found = {"input_ids": ids}
    if positions is not None:
        found["position_ids"] = torch.tensor([positions] * rows)
    return found


PACKED = [*range(5), *range(7)]


@pytest.mark.parametrize(
    "kind, logits, positions, causal",
    [
        ("llama", features, None, True),
        ("qwen3", features, None, True),
        ("llama", features, PACKED, False),
        ("llama", own_positions, None, False),
    ],
)
def test_masks_are_made_where_positions_may_restart(kind, logits, positions, causal):
    module = make(kind)
    example = batch_of(2, positions)
    model = TorchModel(module, example, loss=lambda m, b: {"logits": logits(m, b)})
    types = {name: TensorType("int64", tuple(t.shape)) for name, t in example.items()}
    step = model.capture(types, {"logits"}, False)
    attention = [node for node in step.graph.nodes if node.op == "attention"]
    assert len(attention) == 2
    assert all(node.attrs["causal"] is causal for node in attention)
    assert all((len(node.inputs) == 3) is causal for node in attention)
    training = TorchTraining(model)
    for rows in (2, 3):
        batch = batch_of(rows, positions)
        expected = logits(module, batch).detach().numpy()
        np.testing.assert_allclose(training.step(batch)["logits"], expected, atol=2e-6)


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_windows_keep_their_mask(kind):
    others = {"layer_types": ["sliding_attention", "full_attention"]}
    module = make(kind, sliding_window=4, **(others if kind == "gemma3_text" else {}))
    training = TorchTraining(
        TorchModel(module, batch_of(2), loss=lambda m, b: {"logits": features(m, b)})
    )
    batch = batch_of(3)
    expected = features(module, batch).detach().numpy()
    np.testing.assert_allclose(training.step(batch)["logits"], expected, atol=2e-6)
