"""Models of the zoo whose batches run in parts train as on whole batches, padded unevenly."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np

from tests.e2e import test_parity_bert, test_parity_gpt3, test_parity_transformer
from tests.e2e.host_and_wafer import train
from tests.e2e.test_parity_bert import bert
from tests.e2e.test_parity_gpt3 import gpt
from tests.e2e.test_parity_transformer import transformer

pytestmark = pytest.mark.tf
BERT, GPT = test_parity_bert.drawn(), test_parity_gpt3.batches()
PAIRS = test_parity_transformer.batches()
LAYERS = {"num_hidden_layers": 1}
SIDES = {"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1}


@pytest.mark.parametrize(
    "make, arrays, count, model",
    [
        (transformer, PAIRS, 2, {"label_smoothing": 0.1, **SIDES}),
        (bert, BERT, 3, {"mlm_loss_scaling": "precomputed_num_masked", **LAYERS}),
        (bert, BERT, 3, {"mlm_loss_scaling": "num_masked", "disable_nsp": False, **LAYERS}),
        pytest.param(
            *(bert, BERT, 3, {"mlm_loss_scaling": "batch_size", **LAYERS}), marks=pytest.mark.slow
        ),
        (gpt, GPT, 3, {"loss_scaling": "num_tokens", **LAYERS}),
        (gpt, GPT, 3, {"loss_scaling": "batch_size", "loss_weight": 0.1, **LAYERS}),
        (gpt, GPT, 3, {"mixed_precision": True, **LAYERS}),
    ],
)
def test_parts_train_as_the_whole_batch(tmp_path, make, arrays, count, model):
    """However the loss is divided, and whether the data have done so: means over 7 or 4 words."""
    whole, parts = (
        train(make(micro_batches=k, **model), arrays, tmp_path / str(k), True, 5, micro_batches=k)
        for k in (1, count)
    )
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=5e-6)
