"""Tests of modelzoo/bert/data.py: what the processors yield, in which order, after a restart."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.config import schema
from cerebras_tf.errors import ConfigError, DataError
from modelzoo.bert import data
from modelzoo.bert.input_sections import build_bert_input
from modelzoo.bert.preparation import PreparationSettings, prepare
from tests.modelzoo.bert import corpus

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
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = made.create_dataset(training, skip)
        iterator = tf.data.make_initializable_iterator(dataset)
        session.run(iterator.initializer)
        following, found = iterator.get_next(), []
        while count is None or len(found) < count:
            try:
                found.append(session.run(following))
            except tf.errors.OutOfRangeError:
                break
        return found


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


@pytest.mark.parametrize("processor", [STATIC, ALONE, DYNAMIC, TEXT])
def test_a_stream_goes_on_where_it_was_left(processor, folder, text):
    settings = section(processor, text if processor == TEXT else folder(processor))
    whole = read(settings, 12)
    assert_equal(read(settings, 5, skip=7), whole[7:])


@pytest.mark.parametrize("processor", [STATIC, DYNAMIC])
def test_a_stream_in_buckets_goes_on_where_it_was_left(processor, folder):
    settings = section(processor, folder(processor), buckets=[10, 20])
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


def test_pad_ids_stand_where_there_is_no_token(folder):
    pads = {"input_pad_id": 7, "segment_pad_id": 1, "mlm_pad_id": 9}
    for features, _ in read(section(STATIC, folder(STATIC), **pads), 3):
        padding = features["input_mask"] == 1
        assert padding.any() and np.all(features["input_ids"][padding] == 7)
        assert np.all(features["segment_ids"][padding] == 1)
        unused = features["masked_lm_weights"] == 0
        assert unused.any() and np.all(features["masked_lm_ids"][unused] == 9)


@pytest.mark.parametrize(
    ("bounds", "limits"), [([24, 30], [0, 24, 30, S + 1]), (3, [0, 11, 22, S + 1])]
)
def test_a_bucket_holds_lengths_from_its_lower_bound_to_its_upper(bounds, limits, folder):
    settings = section(ALONE, folder(ALONE), buckets=bounds, repeat=False)
    used = set()
    for features, _ in read(settings):
        buckets = np.digitize(np.sum(1 - features["input_mask"], axis=1), limits)
        assert len(set(buckets)) == 1
        used.add(buckets[0])
    assert used == set(range(1, len(limits)))


def test_buckets_lose_nothing_where_the_rest_is_kept(folder):
    given = folder(ALONE)
    order = {"repeat": False, "shuffle": False}
    whole = read(section(ALONE, given, **order), training=False)
    buckets = read(section(ALONE, given, buckets=4, **order), training=False)

    def rows(batches):
        return sorted(tuple(row) for features, _ in batches for row in features["input_ids"])

    assert rows(buckets) == rows(whole)


@pytest.mark.parametrize("processor", [STATIC, ALONE, DYNAMIC, TEXT])
def test_evaluation_has_every_record_and_training_whole_batches(processor, folder, text):
    given = text if processor == TEXT else folder(processor)
    splits = {"eval_fraction": 0.0} if processor == TEXT else {}
    once = {"repeat": False, "shuffle": False, "batch_size": 11, **splits}

    def sizes(**options):
        found = read(section(processor, given, **once), **options)
        return [len(features["input_ids"]) for features, _ in found]

    if processor == TEXT:
        count = (3 * 721 - 1) // (S - 2)  # files of 60 lines of 12 bytes, and a token at their end
    else:
        with open(f"{given}/manifest.json") as file:
            count = json.load(file)["counts"]["records"]
    assert count % 11 and sizes(training=False) == [11] * (count // 11) + [count % 11]
    assert sizes() == [11] * (count // 11)


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


def test_drawn_masks_spare_the_marks_and_keep_words_together(folder):
    settings = section(DYNAMIC, folder(DYNAMIC), mask_whole_word=True)
    for features, _ in read(settings, 4):
        for number in range(B):
            ids = restored(features, number)
            weights = features["masked_lm_weights"][number]
            chosen = set(features["masked_lm_positions"][number][weights > 0])
            for place, token in enumerate(ids):
                if token in (corpus.CLS, corpus.SEP, corpus.PAD):
                    assert place not in chosen
                elif corpus.VOCABULARY[token].startswith("##") and ids[place - 1] > corpus.MASK:
                    assert (place in chosen) == (place - 1 in chosen)


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
    with pytest.raises(DataError, match="at most 32 tokens. Received: 33"):
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


@pytest.mark.parametrize(
    ("made_for", "read_by", "message"),
    [
        (STATIC, DYNAMIC, "each record must have a feature list tokens"),
        (DYNAMIC, STATIC, "each record must have the features input_ids"),
        (ALONE, STATIC, "each record must have the features"),
    ],
)
def test_records_of_another_kind_are_refused(made_for, read_by, message, folder):
    with pytest.raises(DataError, match=message):
        read(section(read_by, folder(made_for)), 1)


def test_records_longer_than_the_model_are_refused(folder):
    given = folder(DYNAMIC)
    os.remove(f"{given}/manifest.json")  # which tells it too
    with pytest.raises(DataError, match="a feature list tokens, 1 to 6 long. Received: "):
        read(section(DYNAMIC, given, max_sequence_length=6), 1)


def test_keys_that_do_not_fit_are_told():
    def messages(**keys):
        report = schema.Report("f")
        sizes = {"max_sequence_length": S, "max_predictions_per_seq": P, "batch_size": B}
        tree = {"data_processor": DYNAMIC, "data_dir": "x", "vocab_size": 9, **sizes, **keys}
        build_bert_input(tree, "train_input", report)
        return " ".join(report.messages)

    assert "vocab_file is required" in messages()
    assert "buckets must ascend within" in messages(vocab_file="v", buckets=[20, 10])
    assert "input_pad_id must be a token of the vocabulary, below 9" in messages(input_pad_id=9)
    assert "buckets must be at least 1" in messages(vocab_file="v", buckets=0)
    assert "must not exceed max_sequence_length" in messages(max_predictions_per_seq=S + 1)
    assert "masked_lm_prob must be between 0 and 1" in messages(masked_lm_prob=1.0)


def test_vocabulary_without_a_mask_is_refused_before_training(folder, tmp_path):
    given = folder(DYNAMIC)
    os.remove(f"{given}/manifest.json")
    (tmp_path / "bare.txt").write_text("[UNK]\na\n")
    with pytest.raises(ConfigError, match=r"bare\.txt: must have the token \[MASK\]"):
        read(section(DYNAMIC, given, vocab_file=str(tmp_path / "bare.txt")), 1)
