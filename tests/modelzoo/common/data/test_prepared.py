"""Tests of prepared.py: every processor of records refuses those made for another model."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import DataError
from modelzoo.bert.data import PROCESSORS as BERT
from modelzoo.bert.fine_tuning.classifier import data as classifier
from modelzoo.bert.fine_tuning.classifier.params import ClassifierInput, GlueRecordsInput
from modelzoo.bert.fine_tuning.extractive_summarization import data as summarization
from modelzoo.bert.fine_tuning.extractive_summarization.params import BertSumInput
from modelzoo.bert.fine_tuning.question_answering import data as answering
from modelzoo.bert.fine_tuning.question_answering.params import QuestionAnsweringInput
from modelzoo.bert.fine_tuning.token_classifier import data as tagging
from modelzoo.bert.fine_tuning.token_classifier.params import NerInput
from modelzoo.bert.input_sections import (
    BertMlmOnlyTfRecordsDynamicMaskInput,
    BertMlmOnlyTfRecordsStaticMaskInput,
    BertTfRecordsInput,
)
from modelzoo.common.config.input_sections import (
    GptHdf5Input,
    GptPromptsInput,
    GptTextDataInput,
    GptTfRecordsInput,
)
from modelzoo.common.data import gpt, prepared
from modelzoo.common.data.hdf5_files import Hdf5Writer
from modelzoo.common.data.preparation.records import RecordWriter
from modelzoo.common.tokenizers import tokenizers
from modelzoo.common.tokenizers.tokenizers import vocabulary_facts
from modelzoo.transformer.data import TransformerTfRecordsProcessor
from modelzoo.transformer.params import TransformerRecordsInput
from tests.messages import names, raises

V, S = 50257, 128
GIVEN = {"vocab_size": V, "max_sequence_length": S, "batch_size": 2}
DYNAMIC = BERT["BertMlmOnlyTfRecordsDynamicMaskProcessor"]
READERS = {
    "gpt": (gpt.GptTfRecordsProcessor, GptTfRecordsInput),
    "hdf5": (gpt.GptHDF5DataProcessor, GptHdf5Input),
    "bert": (BERT["BertTfRecordsProcessor"], BertTfRecordsInput),
    "static": (
        BERT["BertMlmOnlyTfRecordsStaticMaskProcessor"],
        BertMlmOnlyTfRecordsStaticMaskInput,
    ),
    "dynamic": (DYNAMIC, BertMlmOnlyTfRecordsDynamicMaskInput),
    "classifier": (classifier.GlueTfRecordsProcessor, GlueRecordsInput),
    "summarization": (summarization.BertSumTfRecordsProcessor, BertSumInput),
    "answering": (answering.QuestionAnsweringDataProcessor, QuestionAnsweringInput),
    "tagging": (tagging.NerDataProcessor, NerInput),
}


def make_folder(tmp_path, vocab_size=V, key="max_seq_length", length=S, file="a.tfrecords"):
    (tmp_path / file).write_bytes(b"never read")
    facts = {"settings": {key: length}, "vocab_size": vocab_size}
    (tmp_path / "manifest.json").write_text(json.dumps(facts))
    return str(tmp_path)


def open_reader(name, folder):
    processor, section = READERS[name]
    given = {**GIVEN, "data_processor": processor.__name__, "data_dir": folder}
    return processor(section(**given)).create_dataset(True, 0)


@pytest.fixture(autouse=True)
def label_names(monkeypatch):
    monkeypatch.setattr(tagging, "read_label_names", lambda path: ["O"])


@pytest.mark.parametrize("name", READERS)
def test_records_of_another_vocabulary_or_length_are_refused(tmp_path, name):
    file = "a.h5" if name == "hdf5" else "a.tfrecords"
    folder = make_folder(tmp_path, 30522, length=512, file=file)
    with raises(DataError, folder, "vocab_size", 30522, V, "max_sequence_length", 512, S):
        open_reader(name, folder)


@pytest.mark.parametrize(
    "text", ["{", "[]", "[1]", '{"settings": 5}', '{"settings": {}, "vocab_size": ""}']
)
def test_a_damaged_manifest_is_not_taken_for_an_absent_one(tmp_path, text):
    folder = make_folder(tmp_path)
    (tmp_path / "manifest.json").write_text(text)
    with raises(DataError, "manifest.json"):
        open_reader("gpt", folder)


@pytest.mark.parametrize(
    "change", ["gone", "cut", "other", "zz.tfrecords", "a.tfrecord", "zz.tfrecords-1-of-2"]
)
def test_a_folder_with_other_files_than_its_manifest_lists_is_refused(tmp_path, change):
    writer = RecordWriter(tmp_path, "examples", 1)
    for number in range(3):
        writer.write({"input_ids": np.full(S, number)})
    facts = {"settings": {"max_seq_length": S}, "vocab_size": V, "files": writer.files}
    (tmp_path / "manifest.json").write_text(json.dumps(facts))
    prepared.check_prepared([tmp_path], {"vocab_size": V}, S)
    file = tmp_path / "examples-00001.tfrecords"
    changed = {"gone": None, "cut": file.read_bytes()[:-5]}
    changed["other"] = (tmp_path / "examples-00002.tfrecords").read_bytes()
    if change not in changed:
        (tmp_path / change).write_bytes(file.read_bytes())
    elif changed[change] is None:
        file.unlink()
    else:
        file.write_bytes(changed[change])
    fact = file.name if change in changed else change
    with raises(DataError, tmp_path, "manifest.json", fact):
        prepared.check_prepared([tmp_path], {"vocab_size": V}, S)
    if change == "other":  # a manifest of an earlier version has no such checksum
        for entry in facts["files"]:
            del entry["ends_sha256"]
        (tmp_path / "manifest.json").write_text(json.dumps(facts))
        prepared.check_prepared([tmp_path], {"vocab_size": V}, S)


def test_pairs_of_another_vocabulary_are_refused(tmp_path):
    section = TransformerRecordsInput(
        data_processor="TransformerTfRecordsProcessor",
        data_dir=make_folder(tmp_path, 37000, key="none"),
        src_vocab_size=37000,
        tgt_vocab_size=8000,
        src_max_sequence_length=8,
        tgt_max_sequence_length=8,
        batch_size=2,
    )
    with raises(DataError, 37000, "tgt_vocab_size", 8000):
        TransformerTfRecordsProcessor(section).create_dataset(True, 0)


@pytest.mark.parametrize(
    ("records", "model", "differ"),
    [
        (50257, 50257, False),
        (50257, 50400, False),  # GPT-J
        (50277, 50432, False),  # GPT-NeoX
        (4096, 4112, False),
        (50258, 50257, True),  # a token that the model lacks
        (28996, 30522, True),  # BERT, cased and uncased
        (257, 50257, True),
        (512, 1000, True),
    ],
)
def test_rows_that_no_token_uses_make_no_other_vocabulary(records, model, differ):
    assert prepared.is_other_size(records, model) == differ


@pytest.mark.parametrize("content", [None, '{"other": 1}'])
def test_a_folder_made_by_hand_is_read_and_logged_once(tmp_path, monkeypatch, content):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    lines = []
    monkeypatch.setattr(
        logging.getLogger("tensorflow"), "info", lambda text, *args: lines.append(text % args)
    )
    for _ in range(2):
        prepared.check_prepared([str(tmp_path)], {"vocab_size": V}, S)
    assert len(lines) == 1 and names(lines, tmp_path, "manifest.json")


@pytest.mark.parametrize("kind", ["tfrecords", "hdf5"])
def test_a_token_that_the_model_lacks_is_refused_without_a_manifest(tmp_path, kind):
    prepared.check_tokens("a.tfrecords", [0, 9], 10)
    prepared.check_tokens("a.tfrecords", [10], None)
    with raises(DataError, "a.tfrecords", "vocab_size", 10):
        prepared.check_tokens("a.tfrecords", [3, 10], 10)
    row = np.array([0, 1, 2, V])
    writer = {"tfrecords": RecordWriter, "hdf5": Hdf5Writer}[kind](tmp_path, "part")
    for _ in range(2):
        writer.write({"input_ids": row, "input_mask": np.ones(4, int), "labels": row})
    writer.close()
    processor, section = READERS["gpt" if kind == "tfrecords" else "hdf5"]
    given = {**GIVEN, "max_sequence_length": 4, "data_dir": str(tmp_path)}
    made = processor(section(data_processor=processor.__name__, **given))
    with raises(DataError, "vocab_size", f"Received: {V}"):
        made.create_dataset(True, 0)


def write_manifest(folder, **facts):
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"settings": {}, **facts}))
    return str(folder)


def digest_of(tokens):
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return vocabulary_facts(vocabulary)["vocabulary_sha256"]


def test_vocabularies_of_equal_size_are_distinguished(tmp_path):
    pieces = ["[PAD]", "[UNK]", "the", "##s"]
    vocab_file = tmp_path / "vocab.txt"
    vocab_file.write_text("\r\n".join(pieces) + "\r\n")  # other bytes, the same tokens
    one, two = (
        write_manifest(
            tmp_path / name,
            settings={"vocabulary": [[f"{name}.txt", 9, "of the file"]], "max_seq_length": S},
            vocab_size=V,
            vocabulary_sha256=digest_of(tokens),
        )
        for name, tokens in (("one", pieces), ("two", [*pieces[:2], *pieces[:1:-1]]))
    )
    prepared.check_prepared([one], {}, None, str(vocab_file))
    nowhere = str(tmp_path / "nowhere.txt")
    for file, fact in ((str(vocab_file), vocab_file), (None, "one.txt"), (nowhere, "one.txt")):
        with raises(DataError, f"{two}: ", fact, "two.txt"):
            prepared.check_prepared([one, two], {}, None, file)
    given = {**GIVEN, "data_processor": "GptTfRecordsProcessor"}
    sections = [GptTfRecordsInput(**given, data_dir=each) for each in (one, [one, two])]
    prepared.check_sections([sections[0], None, object()])
    with raises(DataError, f"{two}: "):
        prepared.check_sections(sections)


def make_tokenizer(path, tokens):
    """Writes a tokenizer.json of whole words."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": tokens[0]}
    path.write_text(json.dumps({"version": "1.0", "model": model}))
    return str(path)


@pytest.mark.parametrize("known", ["file", "records"])
@pytest.mark.parametrize("key", ["vocab_file", "tokenizer_file", "encoder"])
def test_another_vocabulary_file_than_that_of_training_is_refused(tmp_path, key, known):
    """Of word pieces, of a whole tokenizer, and of a tokenizer that is named by its type."""
    if key == "vocab_file":
        one, two = (tmp_path / name for name in ("one.txt", "two.txt"))
        one.write_text("a\nb\n")
        two.write_text("b\na\n")
        more = {}
    else:
        one = make_tokenizer(tmp_path / "one.json", ["a", "b"])
        two = make_tokenizer(tmp_path / "two.json", ["b", "a"])
        more = {"tokenizer_type": "JsonTokenizer", "encoder_file": None} if key == "encoder" else {}
    name = "vocab_file" if key == "encoder" else key
    facts = {"vocab_size": 2, "vocabulary_sha256": digest_of("ab")}
    folder = write_manifest(tmp_path / "made", **facts)
    train = SimpleNamespace(data_dir=folder if known == "records" else None)
    if known == "file":
        setattr(train, name if key != "encoder" else "tokenizer_file", str(one))

    def section(path):
        return SimpleNamespace(**{name: str(path)}, **more)

    prepared.check_sections([train, section(one), section(tmp_path / "nowhere"), None])
    with raises(DataError, f"{two}: {name} "):
        prepared.check_sections([train, section(two)])


@pytest.mark.parametrize("size", [257, 50257])
def test_prompts_of_a_model_of_bytes_are_bytes(tmp_path, size):
    path = make_tokenizer(tmp_path / "one.json", ["a", "b"])
    given = {"max_sequence_length": 8, "batch_size": 2, "vocab_size": size}
    train = GptTextDataInput(data_processor="GptTextDataProcessor", **given)
    prompts = {"data_processor": "GptPromptsProcessor", "prompt_file": "a.txt", "batch_size": 2}
    prepared.check_sections([train, GptPromptsInput(**prompts)])
    sections = [train, GptPromptsInput(**prompts, tokenizer_type="JsonTokenizer", vocab_file=path)]
    if size == 50257:  # most of whose tokens no byte uses: another vocabulary's model
        prepared.check_sections(sections)
        return
    with raises(DataError, path, "vocab_file", "GptTextDataProcessor"):
        prepared.check_sections(sections)


def test_vocabularies_of_source_and_target_are_compared_each(tmp_path):
    files = {"one": "a\nb\n", "same": "<pad>\n<unk>\n<s>\n</s>\na 9\nb 3\n", "other": "b\na\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    one, same, other = (str(tmp_path / name) for name in files)

    def pair(source, target):
        return SimpleNamespace(src_vocab_file=source, tgt_vocab_file=target)

    train = pair(one, other)
    prepared.check_sections([train, pair(same, other), pair(str(tmp_path / "gone"), None)])
    with raises(DataError, f"{other}: src_vocab_file", one):
        prepared.check_sections([train, pair(other, one)])
    path = make_tokenizer(tmp_path / "j", ["<pad>", "<unk>", "<s>", "</s>", "a", "b"])
    joint = SimpleNamespace(tokenizer_file=path)
    prepared.check_sections([joint, pair(one, same)])
    with raises(DataError, f"{other}: tgt_vocab_file", path):
        prepared.check_sections([joint, train])


def test_labels_in_another_order_and_another_number_of_them_are_refused(tmp_path):
    one = write_manifest(tmp_path / "one", settings={"labels": ["0", "1"]})
    two = write_manifest(tmp_path / "two", settings={"labels": ["1", "0"]})
    given = {**GIVEN, "data_processor": "GlueTfRecordsProcessor"}
    train, other, both = (GlueRecordsInput(**given, data_dir=d) for d in (one, two, [one, two]))
    prepared.check_sections([train, train, None], 2)
    for sections in ([train, other], [both]):
        with raises(DataError, f"{two}: ", one, "0, 1", "1, 0"):
            prepared.check_sections(sections, 2)
    text = {**given, "data_processor": "Sst2DataProcessor", "vocab_file": "v", "data_dir": "sst2"}
    prepared.check_sections([train, ClassifierInput(**text)], 2)
    with raises(DataError, "sst2", "Sst2DataProcessor", "labels"):
        prepared.check_sections([other, ClassifierInput(**text)], 2)
    tags = SimpleNamespace(data_dir=one, label_vocab_file=None)
    prepared.check_sections([tags, SimpleNamespace(data_dir=two, label_vocab_file=None)], 2)
    for section in (train, tags):
        with raises(DataError, f"{one}: ", "number of labels"):
            prepared.check_sections([section], 3)


def section_of(kind, folder, **keys):
    cls = READERS[kind][1] if kind in READERS else ClassifierInput
    processor = READERS[kind][0].__name__ if kind in READERS else "Sst2DataProcessor"
    given = {**GIVEN, "data_processor": processor, "data_dir": folder, "vocab_file": "v"}
    return cls(**{**given, **keys})


@pytest.mark.parametrize(
    ("kind", "records", "keys", "facts"),
    [
        ("text", None, {"do_lower": True}, ["predict_input.do_lower", "False", "True"]),
        ("answering", False, {"predict_file": "f", "do_lower_case": True}, ["True", "without"]),
        ("answering", True, {}, ["manifest.json", "True"]),
        ("tagging", True, {}, ["manifest.json", "True"]),
        ("dynamic", False, {"do_lower": True}, ["predict_input.do_lower", "True"]),
        ("dynamic", None, {}, None),
        ("summarization", False, {"do_lower_case": True}, None),
        ("text", None, {"do_lower": False}, None),
    ],
)
def test_text_is_lower_cased_as_that_of_the_tokenizer_and_the_records(
    tmp_path, kind, records, keys, facts
):
    settings = {} if records is None else {"do_lower_case": records}
    section = section_of(kind, write_manifest(tmp_path / "records", settings=settings), **keys)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    if facts is None:
        prepared.check_normalization({"predict_input": section}, tmp_path)
    else:
        with raises(DataError, tmp_path, *facts):
            prepared.check_normalization({"predict_input": section}, tmp_path)


def test_questions_are_lower_cased_as_the_records_of_training(tmp_path):
    train = section_of(
        "answering", write_manifest(tmp_path / "a", settings={"do_lower_case": True})
    )
    predict = section_of("answering", str(tmp_path / "none"), predict_file="f")
    prepared.check_normalization({"train_input": train}, None)
    with raises(DataError, tmp_path, "predict_input.do_lower_case", "False"):
        prepared.check_normalization({"train_input": train, "predict_input": predict}, None)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, None),
        ({"strip_accents": False}, "strip accents"),
        ({"tokenize_chinese_chars": False}, "Chinese"),
    ],
)
def test_text_keeps_accents_as_the_tokenizer_of_the_model(tmp_path, files, found):
    (tmp_path / "model").mkdir()
    config = {"do_lower_case": True, **files}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(config))
    records = write_manifest(tmp_path / "records", settings={"do_lower_case": True})
    given = {"predict_file": "f", "do_lower_case": True}
    near = section_of("answering", str(tmp_path), **given, vocab_file=f"{tmp_path}/model/vocab.txt")
    other = section_of("answering", records)
    prepared.check_normalization({"predict_input": near}, tmp_path / "model")
    if found is None:
        prepared.check_normalization({"train_input": other}, tmp_path / "model")
        return
    with raises(DataError, tmp_path / "model", records, found, "vocab_file"):
        prepared.check_normalization({"train_input": other}, tmp_path / "model")
    rules = tokenizers.normalization(near.vocab_file, True)
    settings = {"do_lower_case": True, "normalization": rules}
    made = section_of("answering", write_manifest(tmp_path / "made", settings=settings))
    prepared.check_normalization({"train_input": made}, tmp_path / "model")
