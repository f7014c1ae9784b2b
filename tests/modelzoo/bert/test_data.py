"""Tests of modelzoo/bert/data.py: what the processors yield, in which order, after a restart."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.config import schema
from cerebras_tf.errors import DataError
from modelzoo.bert import data
from modelzoo.bert.input_sections import build_bert_input
from modelzoo.bert.preparation import PreparationSettings, prepare
from tests.messages import raises
from tests.modelzoo.bert import corpus
from tests.reading import batches_of

S, P, B = 32, 5, 4
STATIC, ALONE, DYNAMIC, TEXT = data.PROCESSORS
RECORD_OPTIONS = {
    STATIC: {},
    ALONE: {"mlm_only": True},
    DYNAMIC: {"mlm_only": True, "disable_masking": True, "dupe_factor": 1},
}


@pytest.fixture
def folder(tmp_path):
    """Makes the records of a processor on demand and returns the folder."""

    def make(processor):
        settings = PreparationSettings(
            **{
                "vocab_file": corpus.write_vocabulary(tmp_path),
                "do_lower_case": True,
                "max_seq_length": S,
                "max_predictions_per_seq": P,
                "multiple_docs_in_single_file": True,
                "dupe_factor": 2,
                "short_seq_prob": 0.5,
                **RECORD_OPTIONS[processor],
            }
        )
        prepare([corpus.write_documents(tmp_path)], str(tmp_path / processor), settings)
        return str(tmp_path / processor)

    return make


def section(processor, folder, **keys):
    sizes = {"max_sequence_length": S, "max_predictions_per_seq": P, "batch_size": B}
    tree = {"data_processor": processor, "data_dir": folder, "shuffle_seed": 3, **sizes}
    if processor != TEXT:
        tree["vocab_file"] = f"{folder}/../vocab.txt"
    report = schema.Report("f.yaml")
    built = build_bert_input({**tree, **keys}, "train_input", report)
    assert not report.messages, report.messages
    return built


def read(settings, count=None, skip=0, training=True):
    """Returns the first batches, all without `count`: pairs of features and labels."""
    made = data.PROCESSORS[settings.data_processor](settings)
    return batches_of(lambda: made.create_dataset(training, skip), count)


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        for a, b in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs)):
            np.testing.assert_array_equal(a, b)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "code"
    path.mkdir()
    for number in range(3):
        (path / f"{number}.py").write_text(f"value_{number} = {number}\n" * 60)
    return str(path)


@pytest.mark.parametrize("processor", [STATIC, ALONE, DYNAMIC, TEXT])
def test_batches_have_the_types_that_blank_ones_have(processor, folder, text):
    given = text if processor == TEXT else folder(processor)
    settings = section(processor, given)
    made = data.PROCESSORS[processor](settings)
    with tf.Graph().as_default():
        dataset, blank = made.create_dataset(True, 0), made.blank()
        types = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), blank)
        assert dataset.element_spec == types
    features, labels = read(settings, 1)[0]
    assert set(features) >= set(data.DRAWN) and features["input_ids"].shape == (B, S)
    if processor == STATIC:
        assert labels.shape == (B, 1) and "segment_ids" in features
    else:
        np.testing.assert_array_equal(labels, features["masked_lm_ids"])


@pytest.mark.parametrize("buckets", [None, [10, 20]])
@pytest.mark.parametrize("processor", [STATIC, ALONE, DYNAMIC, TEXT])
def test_a_stream_continues_where_it_was_left(processor, buckets, folder, text):
    if processor == TEXT:
        settings = section(processor, text)
    else:
        settings = section(processor, folder(processor), buckets=buckets)
    whole = read(settings, 12)
    assert_equal(read(settings, 5, skip=7), whole[7:])


def test_padding_is_marked_with_one(folder):
    for features, _ in read(section(STATIC, folder(STATIC)), 4):
        mask = features["input_mask"]
        assert set(np.unique(mask)) <= {0, 1} and np.all(np.diff(mask, axis=1) >= 0)
        assert np.all(features["input_ids"][mask == 1] == corpus.PAD)
        assert np.all(features["input_ids"][:, 0] == corpus.CLS) and not mask[:, 0].any()


def test_weights_of_a_batch_sum_to_its_size_where_they_are_scaled(folder):
    given = folder(STATIC)
    plain = read(section(STATIC, given, scale_mlm_weights=False), 3)
    scaled = read(section(STATIC, given), 3)
    for (before, _), (after, _) in zip(plain, scaled):
        weights = before["masked_lm_weights"]
        assert set(np.unique(weights)) <= {0.0, 1.0} and weights.sum() > B
        assert after["masked_lm_weights"].sum() == pytest.approx(B)
        np.testing.assert_allclose(after["masked_lm_weights"], weights * (B / weights.sum()))


def test_drawn_masks_are_others_in_every_epoch_over_the_same_tokens(folder):
    settings = section(DYNAMIC, folder(DYNAMIC), shuffle=False, repeat=True)
    epoch = len(read(section(DYNAMIC, folder(DYNAMIC), shuffle=False, repeat=False)))
    found = read(settings, 2 * epoch)
    for (first, _), (second, _) in zip(found[:epoch], found[epoch:]):
        for number in range(B):
            assert restored(first, number) == restored(second, number)
        assert not np.array_equal(first["masked_lm_positions"], second["masked_lm_positions"])


def restored(features, number):
    """The tokens of a row before they were masked."""
    ids = features["input_ids"][number].copy()
    real = features["masked_lm_weights"][number] > 0
    ids[features["masked_lm_positions"][number][real]] = features["masked_lm_ids"][number][real]
    return ids.tolist()


def test_tokens_are_looked_up_in_lower_case_where_asked(tmp_path):
    masker = data.TokenMasker(section(DYNAMIC, f"{tmp_path}/x", **vocabulary(tmp_path)))
    lower = data.TokenMasker(
        section(DYNAMIC, f"{tmp_path}/x", do_lower=True, **vocabulary(tmp_path))
    )
    tokens = np.array([[b"[CLS]", b"A", b"A", b"b", b"[SEP]"]], object)

    def seen(made):
        features = dict(zip(data.DRAWN, made.batch(0, tokens, [5])))
        return restored(features, 0)[:5]

    a, b = corpus.VOCABULARY.index("a"), corpus.VOCABULARY.index("b")
    assert seen(masker) == [corpus.CLS, corpus.UNK, corpus.UNK, b, corpus.SEP]
    assert seen(lower) == [corpus.CLS, a, a, b, corpus.SEP]
    with raises(DataError, 32, 33):
        masker.batch(0, np.full((1, 33), b"a", object), [33])


def vocabulary(tmp_path):
    return {"vocab_file": corpus.write_vocabulary(tmp_path)}


def test_bytes_stand_between_marks(text):
    (features, _), *_ = read(section(TEXT, text, shuffle=False, eval_fraction=0.0), 1)
    row = restored(features, 0)
    assert (row[0], row[-1]) == (data.CLS, data.SEP)
    assert bytes(token - data.FIRST_BYTE for token in row[1:-1]) == b"value_0 = 0\n" * 2 + b"value_"
    assert not features["input_mask"].any()
    assert np.all(features["masked_lm_weights"].sum(axis=1) > 0)
