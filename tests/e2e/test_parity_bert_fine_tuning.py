"""Compares 20 steps on wafer and host: BERT's sentence and token classifiers, with padding."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import yaml

from modelzoo.bert.fine_tuning.tasks import TASKS
from tests.e2e.host_and_wafer import check_parity

pytestmark = pytest.mark.tf
CONFIGS = Path(__file__).parents[2] / "configs"
BATCH, LENGTH, VOCAB = 4, 10, 30
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_heads": 2, "filter_size": 32}


def tiny(model_fn, config, labels):
    """A model_fn with a small configuration, made tinier and without dropout."""
    tree = yaml.safe_load((CONFIGS / config).read_text(encoding="utf-8"))
    keys = {"vocab_size": VOCAB, "vocab_file": "none", "label_vocab_file": "none"}
    tree["train_input"].update(max_sequence_length=LENGTH, batch_size=BATCH, buckets=None)
    tree["train_input"].update({k: v for k, v in keys.items() if k in tree["train_input"]})
    tree["model"].update(SIZES, use_segment_embedding=True, **labels)
    tree["optimizer"]["learning_rate"] = 2.0e-3
    tree["model"].update({key: 0.0 for key in tree["model"] if key.endswith("dropout_rate")})

    def with_params(features, labels, mode, params):
        return model_fn(features, labels, mode, tree)

    return with_params


def batches(classes, per_token):
    """Three batches whose rows hold from 4 to 10 tokens."""
    generator = np.random.default_rng(2)
    made = []
    for _ in range(3):
        lengths = generator.integers(4, LENGTH + 1, (BATCH, 1))
        mask = (np.arange(LENGTH) >= lengths).astype(np.int32)
        ids = generator.integers(1, VOCAB, (BATCH, LENGTH)).astype(np.int32) * (1 - mask)
        segments = (np.arange(LENGTH) >= 3).astype(np.int32) * (1 - mask)
        shape = (BATCH, LENGTH) if per_token else (BATCH,)
        labels = generator.integers(0, classes, shape).astype(np.int32)
        features = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
        made.append((features, labels))
    return made


def test_classifier_trains_as_on_the_host(tmp_path):
    model_fn = tiny(TASKS["classifier"].model_fn, "params_bert_small_sst2.yaml", {})
    host, _ = check_parity(model_fn, batches(2, per_token=False), tmp_path)
    assert host.losses[18] < host.losses[0]  # of the same batch


def test_token_classifier_trains_as_on_the_host(tmp_path):
    config, labels = "params_bert_small_ncbi_disease.yaml", {"num_classes": 5}
    model_fn = tiny(TASKS["token_classifier"].model_fn, config, labels)
    host, _ = check_parity(model_fn, batches(5, per_token=True), tmp_path)
    assert host.losses[18] < host.losses[0]  # of the same batch
