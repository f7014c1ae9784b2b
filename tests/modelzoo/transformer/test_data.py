"""Tests of modelzoo/transformer/data.py: text in tokens, plain text and records."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.config.schema import Report, build
from cerebras_tf.errors import ConfigError, DataError
from modelzoo.transformer.data import PROCESSORS
from modelzoo.transformer.params import IdentifierInput, TransformerTextInput
from modelzoo.transformer.vocabulary import ByteVocabulary, LineVocabulary


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


def batches(section, training=False, skip=0):
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = processor(section).create_dataset(training, skip)
        batch = tf.data.make_one_shot_iterator(dataset).get_next()
        read = []
        while True:
            try:
                read.append(session.run(batch))
            except tf.errors.OutOfRangeError:
                return read


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


def test_a_batch_is_padded_to_its_bucket(texts):
    read = batches(section(texts, buckets=[4, 8]))
    assert [features["encoder_mask"].shape for features, _ in read] == [(2, 4), (2, 8)]
    assert [features["pair_index"].tolist() for features, _ in read] == [[1, 2], [0, -1]]


def test_every_worker_trains_on_a_part_of_the_pairs(texts, monkeypatch):
    sources = []
    for index in (0, 1):
        task = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(task))
        pairs = processor(section(texts, use_multiple_workers=True)).pairs(training=True)
        sources.append([pairs.sources[number].tolist() for number in range(len(pairs))])
        assert len(processor(section(texts, use_multiple_workers=True)).pairs(training=False)) == 3
    assert sources == [[[4, 5, 6], [1, 6]], [[6]]]


def test_references_lose_the_marks_of_word_parts(texts):
    sources, references = processor(section(texts)).references()
    assert sources[0] == "wide sea" and references[0] == "das weite Meer"
    assert LineVocabulary(str(texts / "v.tgt")).decode([4, 5, 6, 7, 3]) == "das weite Meer"


def test_a_missing_vocabulary_is_told_with_what_makes_one(tmp_path):
    with pytest.raises(DataError, match=r"v\.src: must be .* tokenizer_file .*prepare vocab"):
        LineVocabulary(str(tmp_path / "v.src"))


def test_texts_of_different_lengths_are_refused(texts):
    (texts / "a.tgt").write_text("eins\n", encoding="utf-8")
    with pytest.raises(DataError, match="as many lines as .*Received: 1 and 3"):
        batches(section(texts))


def test_text_that_is_not_utf_8_is_named_by_its_line(texts):
    for mark in (b"", b"\xef\xbb\xbf"):
        (texts / "a.src").write_bytes(mark + b"gut\nsch\xf6n\nfein\n")
        with pytest.raises(DataError, match=r"a\.src:2: must be UTF-8 text. Received: byte 0xf6"):
            batches(section(texts))


def encoder_ids(texts):
    return [features["encoder_input_ids"].tolist() for features, _ in batches(section(texts))]


def test_byte_order_mark_is_no_text(texts):
    expected = encoder_ids(texts)
    (texts / "a.src").write_bytes(b"\xef\xbb\xbf" + (texts / "a.src").read_bytes())
    assert encoder_ids(texts) == expected


@pytest.mark.parametrize("names", [("a.src", "a.tgt", "v.src", "v.tgt"), ("a.src",)])
def test_windows_line_ends_are_line_ends(texts, names):
    expected = encoder_ids(texts)
    for name in names:
        (texts / name).write_bytes((texts / name).read_bytes().replace(b"\n", b"\r\n"))
    assert encoder_ids(texts) == expected


def test_a_vocabulary_of_another_size_is_refused(texts):
    with pytest.raises(ConfigError, match="src_vocab_size: must be .* 7"):
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


def test_bytes_come_back_as_text():
    vocabulary = ByteVocabulary()
    (ids,) = vocabulary.encode_batch(["Größe"])
    assert ids.min() >= 4 and vocabulary.decode([2, *ids, 3]) == "Größe"


def test_pairs_that_are_empty_or_too_long_are_told_apart(texts):
    long = section(texts, src_max_sequence_length=2, tgt_max_sequence_length=2)
    (texts / "a.src").write_text("w@@ ide sea\n\n")
    (texts / "a.tgt").write_text("das Meer\nMeer\n")
    words = "a.src and .*a.tgt: must hold .* 2 pairs, of which 1 are empty and 1 longer. Raise src_"
    with pytest.raises(DataError, match=words):
        batches(long)
    (texts / "a.src").write_text("\n\n")
    with pytest.raises(DataError, match="2 pairs, of which 2 are empty and 0 longer. Add text."):
        batches(long)
