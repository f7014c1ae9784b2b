"""Tests of prepared.py: every processor of records refuses those made for another model."""

from __future__ import annotations

import dataclasses
import json
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
from modelzoo.common.tokenizers.tokenizers import vocabulary_facts
from modelzoo.transformer.data import TransformerTfRecordsProcessor
from modelzoo.transformer.params import TransformerRecordsInput
from tests.messages import names

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
    with pytest.raises(DataError) as error:
        open_reader(name, folder)
    assert names(error.value, folder, "vocab_size", 30522, V, "max_sequence_length", 512, S)


@pytest.mark.parametrize(
    "text", ["{", "[]", "[1]", '{"settings": 5}', '{"settings": {}, "vocab_size": ""}']
)
def test_a_damaged_manifest_is_not_taken_for_an_absent_one(tmp_path, text):
    folder = make_folder(tmp_path)
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=r"manifest\.json"):
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
    if change == "gone":
        file.unlink()
    elif change == "cut":
        file.write_bytes(file.read_bytes()[:-5])
    elif change == "other":
        file.write_bytes((tmp_path / "examples-00002.tfrecords").read_bytes())
    else:
        (tmp_path / change).write_bytes(file.read_bytes())
    with pytest.raises(DataError) as error:
        prepared.check_prepared([tmp_path], {"vocab_size": V}, S)
    fact = file.name if change in ("gone", "cut", "other") else change
    assert names(error.value, tmp_path, "manifest.json", fact)
    if change == "other":  # a manifest of an earlier version does not tell
        for entry in facts["files"]:
            del entry["ends_sha256"]
        (tmp_path / "manifest.json").write_text(json.dumps(facts))
        prepared.check_prepared([tmp_path], {"vocab_size": V}, S)


def test_pairs_of_another_vocabulary_are_refused(tmp_path):
    lengths = {"src_max_sequence_length": 8, "tgt_max_sequence_length": 8, "batch_size": 2}
    section = TransformerRecordsInput(
        data_processor="TransformerTfRecordsProcessor",
        data_dir=make_folder(tmp_path, 37000, key="none"),
        src_vocab_size=37000,
        tgt_vocab_size=8000,
        **lengths,
    )
    with pytest.raises(DataError, match="of 37000 tokens where tgt_vocab_size is 8000"):
        TransformerTfRecordsProcessor(section).create_dataset(True, 0)
    section = dataclasses.replace(section, tgt_vocab_size=37000)
    with pytest.raises(DataError, match="must be a whole TFRecord file"):  # the next check
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
    assert prepared.differs(records, model) == differ


def test_what_a_manifest_does_not_tell_is_not_compared(tmp_path):
    folder = make_folder(tmp_path, None, key="max_sequence_length")
    prepared.check_prepared([folder], {"vocab_size": V}, S)
    with pytest.raises(DataError, match="Received: sequences of 128 where .* is 64"):
        prepared.check_prepared([folder], {"vocab_size": V}, 64)


@pytest.mark.parametrize("content", [None, '{"other": 1}'])
def test_folder_made_by_hand_is_told_in_one_line_and_read(tmp_path, monkeypatch, content):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    told = []
    monkeypatch.setattr(tf.logging, "info", lambda text, *args: told.append(text % args))
    for _ in range(2):
        prepared.check_prepared([str(tmp_path)], {"vocab_size": V}, S)
    assert len(told) == 1 and names(told, tmp_path, "manifest.json")


def test_token_that_the_model_lacks_is_refused_without_a_manifest():
    prepared.check_tokens("a.tfrecords", [0, 9], 10)
    prepared.check_tokens("a.tfrecords", [], 10)
    prepared.check_tokens("a.tfrecords", [10], None)
    with pytest.raises(DataError, match="a.tfrecords: must hold tokens below vocab_size, 10"):
        prepared.check_tokens("a.tfrecords", [3, 10], 10)


def make_digests(tmp_path, **digests):
    for name, digest in digests.items():
        folder = make_folder(tmp_path / name)
        facts = json.loads((tmp_path / name / "manifest.json").read_text())
        facts["settings"]["vocabulary"] = [[f"{name}.txt", 9, "of the file"]]
        facts["vocabulary_sha256"] = digest
        (tmp_path / name / "manifest.json").write_text(json.dumps(facts))
        yield folder


def test_vocabularies_of_equal_size_are_told_apart(tmp_path):
    pieces = ["[PAD]", "[UNK]", "the", "##s"]
    vocab_file = tmp_path / "vocab.txt"
    vocab_file.write_text("\r\n".join(pieces) + "\r\n")  # other bytes, the same tokens
    same, other = (
        vocabulary_facts({piece: number for number, piece in enumerate(each)})["vocabulary_sha256"]
        for each in (pieces, [*pieces[:2], *pieces[:1:-1]])
    )
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    one, two = make_digests(tmp_path, one=same, two=other)
    prepared.check_prepared([one, str(tmp_path)], {}, None, str(vocab_file))
    for file, fact in (
        (str(vocab_file), vocab_file),
        (None, f"one.txt, as {one}"),
        (str(tmp_path / "nowhere.txt"), f"one.txt, as {one}"),
    ):
        with pytest.raises(DataError) as error:
            prepared.check_prepared([one, two], {}, None, file)
        assert names(error.value, f"{two}: ", fact, "two.txt")
    given = {**GIVEN, "data_processor": "GptTfRecordsProcessor"}
    sections = [GptTfRecordsInput(**given, data_dir=each) for each in (one, [one, two])]
    prepared.check_sections([sections[0], None, object()])
    with pytest.raises(DataError, match=f"{two}: "):
        prepared.check_sections(sections)


@pytest.mark.parametrize("known", ["file", "records"])
def test_vocabulary_file_of_another_section_is_compared_with_training(tmp_path, known):
    files = [tmp_path / name for name in ("one.txt", "two.txt")]
    files[0].write_text("a\nb\n")
    files[1].write_text("b\na\n")
    (tmp_path / "one").mkdir()
    (folder,) = make_digests(tmp_path, one=vocabulary_facts({"a": 0, "b": 1})["vocabulary_sha256"])
    given = {
        **GIVEN,
        "vocab_size": 2,
        "data_processor": "NerDataProcessor",
        "label_vocab_file": "x",
    }
    path = {"vocab_file": str(files[0])} if known == "file" else {}
    train = NerInput(**given, data_dir=folder if known == "records" else "nowhere", **path)
    sections = [NerInput(**given, data_dir="other", vocab_file=str(file)) for file in files]
    prepared.check_sections([train, sections[0], None])
    with pytest.raises(DataError, match=f"{files[1]}: vocab_file must hold the tokens of .*one"):
        prepared.check_sections([train, *sections])


def make_tokenizer(path, tokens):
    """Writes a tokenizer.json of whole words."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": tokens[0]}
    path.write_text(json.dumps({"version": "1.0", "model": model}))
    return str(path), vocabulary_facts(vocabulary)["vocabulary_sha256"]


@pytest.mark.parametrize("known", ["file", "records"])
def test_tokenizers_of_other_tokens_than_those_of_training_are_refused(tmp_path, known):
    one, digest = make_tokenizer(tmp_path / "one.json", ["a", "b"])
    two, _ = make_tokenizer(tmp_path / "two.json", ["b", "a"])
    longer, _ = make_tokenizer(tmp_path / "longer.json", ["a", "b", "padding"])
    (tmp_path / "made").mkdir()
    folder = make_folder(tmp_path / "made", 2)
    facts = {"settings": {}, "vocab_size": 2, "vocabulary_sha256": digest}
    (tmp_path / "made" / "manifest.json").write_text(json.dumps(facts))
    given = {"tokenizer_type": "JsonTokenizer", "encoder_file": None}
    train = SimpleNamespace(**({"tokenizer_file": one} if known == "file" else {}))
    train.data_dir = folder if known == "records" else None
    for fits in (one, *([longer] if known == "records" else []), str(tmp_path / "nowhere.json")):
        prepared.check_sections([train, SimpleNamespace(vocab_file=fits, **given)])
    for key, section in (
        ("vocab_file", SimpleNamespace(vocab_file=two, **given)),
        ("tokenizer_file", SimpleNamespace(tokenizer_file=two)),
    ):
        with pytest.raises(DataError, match=f"{two}: {key} must hold the tokens of .*"):
            prepared.check_sections([train, section])


@pytest.mark.parametrize("size", [257, 50257])
def test_prompts_of_a_model_of_bytes_are_bytes(tmp_path, size):
    path, _ = make_tokenizer(tmp_path / "one.json", ["a", "b"])
    given = {"max_sequence_length": 8, "batch_size": 2, "vocab_size": size}
    train = GptTextDataInput(data_processor="GptTextDataProcessor", **given)
    prompts = {"data_processor": "GptPromptsProcessor", "prompt_file": "a.txt", "batch_size": 2}
    prepared.check_sections([train, GptPromptsInput(**prompts)])
    sections = [train, GptPromptsInput(**prompts, tokenizer_type="JsonTokenizer", vocab_file=path)]
    if size == 50257:  # most of whose tokens no byte uses: another vocabulary's model
        prepared.check_sections(sections)
        return
    with pytest.raises(DataError) as error:
        prepared.check_sections(sections)
    assert names(error.value, path, "vocab_file", "GptTextDataProcessor")


def test_vocabularies_of_text_in_tokens_are_compared_side_by_side(tmp_path):
    files = {"one": "a\nb\n", "same": "<pad>\n<unk>\n<s>\n</s>\na 9\nb 3\n", "other": "b\na\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    one, same, other = (str(tmp_path / name) for name in files)
    sections = {
        name: SimpleNamespace(src_vocab_file=source, tgt_vocab_file=target)
        for name, (source, target) in {
            "train": (one, other),
            "fits": (same, other),
            "gone": (str(tmp_path / "gone"), None),
            "exchanged": (other, one),
        }.items()
    }
    train = sections["train"]
    prepared.check_sections([train, sections["fits"], sections["gone"]])
    with pytest.raises(DataError, match=f"{other}: src_vocab_file must hold the tokens of {one}"):
        prepared.check_sections([train, sections["exchanged"]])
    path, digest = make_tokenizer(tmp_path / "j", ["<pad>", "<unk>", "<s>", "</s>", "a", "b"])
    joint = SimpleNamespace(tokenizer_file=path)
    prepared.check_sections([joint, SimpleNamespace(src_vocab_file=one, tgt_vocab_file=same)])
    with pytest.raises(DataError, match=f"{other}: tgt_vocab_file must hold the tokens of {path}"):
        prepared.check_sections([joint, train])


def make_labelled(folder, labels):
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"settings": {"labels": labels}}))
    return str(folder)


def test_labels_in_another_order_and_another_number_of_them_are_refused(tmp_path):
    one = make_labelled(tmp_path / "one", ["0", "1"])
    two = make_labelled(tmp_path / "two", ["1", "0"])
    given = {**GIVEN, "data_processor": "GlueTfRecordsProcessor"}
    train, other, both = (GlueRecordsInput(**given, data_dir=d) for d in (one, two, [one, two]))
    prepared.check_sections([train, train, None], 2)
    for sections in ([train, other], [both]):
        with pytest.raises(DataError) as error:
            prepared.check_sections(sections, 2)
        assert names(error.value, f"{two}: ", one, "0, 1", "1, 0")
    text = ClassifierInput(
        **{**given, "data_processor": "Sst2DataProcessor", "vocab_file": "v"}, data_dir="sst2"
    )
    prepared.check_sections([train, text], 2)
    with pytest.raises(DataError, match="sst2 with Sst2DataProcessor: must have the labels of"):
        prepared.check_sections([other, text], 2)
    with pytest.raises(DataError, match=f"{one}: must have as many labels as model.num_cls_cl"):
        prepared.check_sections([train], 3)


@pytest.mark.parametrize("kind", ["tfrecords", "hdf5"])
def test_first_record_by_hand_is_compared_with_the_vocabulary(tmp_path, kind):
    row = np.array([0, 1, 2, V])
    record = {"input_ids": row, "input_mask": np.ones(4), "labels": row}
    maker = {"tfrecords": RecordWriter, "hdf5": Hdf5Writer}[kind]
    writer = maker(tmp_path, "part")
    for _ in range(2):
        writer.write({name: values.astype(np.int64) for name, values in record.items()})
    writer.close()
    processor, section = READERS["gpt" if kind == "tfrecords" else "hdf5"]
    given = {**GIVEN, "max_sequence_length": 4, "data_dir": str(tmp_path)}
    made = processor(section(data_processor=processor.__name__, **given))
    with pytest.raises(DataError, match="below vocab_size, 50257. Received: 50257"):
        made.create_dataset(True, 0)
