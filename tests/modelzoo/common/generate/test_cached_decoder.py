"""Tests of decoding with a cache: it gives the logits of running the whole text."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from cerebras_tf.errors import CheckpointError
from tests.modelzoo.language_models import POSITIONS, ROOMS, VOCAB_SIZE, SmallModel

PROMPT_LENGTHS = (5, 1, 11)
PLACES = pytest.mark.parametrize("use_cs", [False, True], ids=["host", "wafer"])


@pytest.fixture(scope="module", params=ROOMS)
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


def test_reordered_rows_go_on_with_the_cache_of_the_row_they_were_made_of(model):
    ids = texts()
    with model.decoder(False) as decoder:
        decoder.start([ids[0, :4], ids[1, :6], ids[2, :5]])
        decoder.reorder([1, 1, 0])
        logits = decoder.append([7, 8, 9])
    for row, text in enumerate(([*ids[1, :6], 7], [*ids[1, :6], 8], [*ids[0, :4], 9])):
        expected = model.full_logits([text])[0, -1]
        np.testing.assert_allclose(logits[row], expected, rtol=1e-4, atol=1e-4)


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
    with (
        pytest.raises(CheckpointError, match="must fit the model"),
        model.decoder(False) as decoder,
    ):
        decoder.start([[1, 2]])
