"""Outputs of a loss function are results of a step, with and without a loss."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.training import TorchTraining


@pytest.mark.parametrize("has_loss", [True, False])
def test_outputs_of_any_batch_are_those_of_torch(has_loss):
    def outputs(model, batch):
        found = model(batch["x"])
        loss = {"loss": found.square().mean()} if has_loss else {}
        return {"logits": found, "count": (found > 0).sum(), **loss}

    module = torch.nn.Linear(3, 4)
    training = TorchTraining(TorchModel(module, {"x": torch.randn(2, 3)}, loss=outputs))
    batch = {"x": torch.randn(5, 3)}
    found, expected = training.step(batch), outputs(module, batch)
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor.detach().numpy(), rtol=1e-6, atol=1e-6)
