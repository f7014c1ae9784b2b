"""Pairs in text, tokens and records: what batches hold, and that seeds decide them."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.config.schema import Report, build
from cerebras_tf.errors import ConfigError, DataError
from modelzoo.transformer.data import PROCESSORS
from modelzoo.transformer.pairs import EOS, FEATURES, NO_PAIR, SOS, PairBatches, Pairs, make_batch
from modelzoo.transformer.params import IdentifierInput, TransformerTextInput
from modelzoo.transformer.vocabulary import ByteVocabulary, LineVocabulary
from tests.messages import raises
from tests.reading import batches_of


@pytest.fixture
def texts(tmp_path):
    """Three pairs, in tokens, and their vocabularies."""
    files = {
        "a.src": "w@@ ide sea\nsea\nunheard sea\n",
        "a.tgt": "das w@@ eite Meer\nMeer\ndas Meer\n",
        "v.src": "<pad>\n<unk>\n<s>\n</s>\nw@@\nide\nsea\n",
        "v.tgt": "das\nw@@\neite\nMeer\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def section(folder, **others):
    tree = {
        "data_processor": "TransformerDynamicDataProcessor",
        "src_data_dir": str(folder / "a.src"),
        "tgt_data_dir": str(folder / "a.tgt"),
        "src_vocab_file": str(folder / "v.src"),
        "tgt_vocab_file": str(folder / "v.tgt"),
        "src_max_sequence_length": 8,
        "tgt_max_sequence_length": 8,
        "batch_size": 2,
        "shuffle": False,
        "repeat": False,
        **others,
    }
    report = Report("test")
    built = build(TransformerTextInput, tree, report)
    assert not report.messages, report.messages
    return built


def processor(section):
    return PROCESSORS[section.data_processor](section)


def batches(section, skip=0):
    return batches_of(lambda: processor(section).create_dataset(False, skip))


def test_tokens_are_numbered_by_the_lines_of_the_vocabulary_after_the_special_ones(texts):
    (features, labels), (rest, _) = batches(section(texts))
    assert features["encoder_input_ids"][:, :4].tolist() == [[4, 5, 6, 0], [6, 0, 0, 0]]
    assert features["decoder_input_ids"][:, :5].tolist() == [[2, 4, 5, 6, 7], [2, 7, 0, 0, 0]]
    assert labels[:, :5].tolist() == [[4, 5, 6, 7, 3], [7, 3, 0, 0, 0]]
    assert rest["encoder_input_ids"][0, :3].tolist() == [1, 6, 0], "<unk>, and the last pair alone"
    assert rest["pair_index"].tolist() == [2, -1]


def test_the_source_can_be_reversed_and_batches_skipped(texts):
    ((features, _),) = batches(section(texts, source_reverse=True), skip=1)
    assert features["encoder_input_ids"][0, :3].tolist() == [6, 1, 0]


def test_every_worker_trains_on_a_part_of_the_pairs(texts, monkeypatch):
    sources = []
    for index in (0, 1):
        cluster = {"chief": ["z:1"], "worker": ["a:1", "b:1"]}
        task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(task))
        pairs = processor(section(texts, use_multiple_workers=True)).pairs(training=True)
        sources.append([pairs.sources[number].tolist() for number in range(len(pairs))])
        assert len(processor(section(texts, use_multiple_workers=True)).pairs(training=False)) == 3
    assert sources == [[[4, 5, 6], [1, 6]], [[6]]]


def test_references_lose_the_marks_of_word_parts(texts):
    sources, references = processor(section(texts)).references()
    assert sources[0] == "wide sea" and references[0] == "das weite Meer"
    assert LineVocabulary(str(texts / "v.tgt")).decode([4, 5, 6, 7, 3]) == "das weite Meer"


def test_texts_of_different_lengths_are_refused(texts):
    (texts / "a.tgt").write_text("eins\n", encoding="utf-8")
    with raises(DataError, "1 and 3"):
        batches(section(texts))


def test_a_vocabulary_of_another_size_is_refused(texts):
    with raises(ConfigError, "src_vocab_size", 7):
        batches(section(texts, src_vocab_size=9))


def test_names_are_split_once_and_rewritten():
    tree = {
        "data_processor": "IdentifierDataProcessor",
        "src_max_sequence_length": 24,
        "tgt_max_sequence_length": 24,
        "batch_size": 2,
    }
    identifiers = processor(build(IdentifierInput, tree, Report("test")))
    kept, answers = identifiers.references()
    pair = dict(zip(kept, answers))
    trained = {ByteVocabulary().decode(row) for row in identifiers.tokens(training=True)[0]}
    assert len(trained) > 3000 and not trained & set(kept) and len(kept) > 100
    assert all(ours.replace("_", "") == theirs.lower() for ours, theirs in pair.items())
    assert not any("_" in answer for answer in answers)


def random_pairs(count=50, longest=12, seed=0):
    rng = np.random.default_rng(seed)
    sides = [[rng.integers(4, 99, n) for n in rng.integers(1, longest, count)] for _ in range(2)]
    return Pairs(*sides, longest, longest)


def batch_of(batches, number):
    return dict(zip((*FEATURES, "labels"), batches.batch(number)))


def test_a_batch_holds_start_and_end_tokens_masks_and_the_scale_of_the_loss():
    pairs = Pairs([np.array([7, 8]), np.array([9])], [np.array([5]), np.array([6, 4, 5])], 4, 4)
    batch = dict(zip((*FEATURES, "labels"), make_batch(pairs, [1, 0], 3, 4)))
    assert batch["encoder_input_ids"].tolist() == [[9, 0, 0, 0], [7, 8, 0, 0], [0, 0, 0, 0]]
    assert batch["encoder_input_length"].tolist() == [1, 2, 0]
    assert batch["encoder_mask"].tolist() == [[0, 1, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1]]
    assert batch["decoder_input_ids"].tolist() == [[SOS, 6, 4, 5], [SOS, 5, 0, 0], [0, 0, 0, 0]]
    assert batch["labels"].tolist() == [[6, 4, 5, EOS], [5, EOS, 0, 0], [0, 0, 0, 0]]
    assert batch["decoder_input_length"].tolist() == [4, 2, 0]
    assert batch["decoder_mask"].tolist() == [[0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]]
    assert batch["pair_index"].tolist() == [1, 0, NO_PAIR]
    assert batch["loss_scale"].dtype == np.float32
    np.testing.assert_allclose(batch["loss_scale"], 3 / 6)


def test_pairs_that_are_empty_or_too_long_are_dropped_and_counted():
    side = [np.arange(4, 4 + n) for n in (0, 1, 5, 6)]
    pairs = Pairs(side, side[::-1], 5, 6)
    assert pairs.sources.lengths.tolist() == [1, 5] and pairs.dropped == 2
    assert Pairs(side, side, 5, 5).dropped == 3, "the end token counts"


def test_sources_to_translate_are_cut_and_not_dropped():
    side = [np.arange(4, 4 + n) for n in (0, 1, 5, 6)]
    pairs = Pairs(side, [np.zeros(0, int)] * 4, 5, 6, cut=True)
    assert len(pairs) == 4 and pairs.dropped == 0 and pairs.cut == 1
    assert pairs.sources[3].tolist() == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("seed", [None, 3])
def test_every_pair_is_evaluated_once_in_rows_that_hold_it(seed):
    pairs = random_pairs()
    batches = PairBatches(pairs, (4, 8, 12), 8, seed, keep_all=True)
    seen = []
    for number in range(batches.batches_per_epoch):
        batch = batch_of(batches, number)
        length = batch["labels"].shape[1]
        real = batch["pair_index"] != NO_PAIR
        seen += batch["pair_index"][real].tolist()
        longest = np.maximum(batch["encoder_input_length"], batch["decoder_input_length"])[real]
        assert {4: 0, 8: 4, 12: 8}[length] <= longest.max() <= length
    assert sorted(seen) == list(range(len(pairs)))


def test_without_a_seed_short_pairs_come_first_each_length_in_the_order_of_the_text():
    pairs = random_pairs()
    batches = PairBatches(pairs, (8, 12), 8, None, keep_all=True)
    shapes = [batch_of(batches, number)["labels"].shape[1] for number in range(7)]
    assert shapes == sorted(shapes) and set(shapes) == {8, 12}
    rows = np.concatenate([batch_of(batches, number)["pair_index"] for number in range(7)])[:50]
    needed = np.maximum(pairs.sources.lengths, pairs.targets.lengths + 1)[rows]
    bucket = (needed >= 8).astype(int)
    assert (np.diff(bucket) >= 0).all()
    assert all((np.diff(rows[bucket == number]) > 0).all() for number in range(2))


def test_training_batches_are_full_and_differ_from_epoch_to_epoch():
    batches = PairBatches(random_pairs(), (6, 12), 8, 3, keep_all=False)
    epochs = []
    for epoch in range(2):
        numbers = range(epoch * batches.batches_per_epoch, (epoch + 1) * batches.batches_per_epoch)
        rows = [batch_of(batches, number)["pair_index"] for number in numbers]
        assert all((row != NO_PAIR).all() for row in rows)
        flat = np.concatenate(rows)
        assert len(set(flat.tolist())) == len(flat)
        epochs.append(flat.tolist())
    assert epochs[0] != epochs[1]


def test_a_batch_depends_on_its_number_alone():
    through = PairBatches(random_pairs(), (6, 12), 8, 3, keep_all=False)
    expected = [through.batch(number) for number in range(20)][17]
    for ours, theirs in zip(PairBatches(random_pairs(), (6, 12), 8, 3, False).batch(17), expected):
        np.testing.assert_array_equal(ours, theirs)
