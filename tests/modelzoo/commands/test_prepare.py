"""`cerebras-tf prepare`: every kind makes records, once, and names what is wrong; exit code 2."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")
pytest.importorskip("tokenizers")

from modelzoo.commands.main import main
from modelzoo.common.train import run
from tests.messages import names
from tests.modelzoo.bert.fine_tuning.extractive_summarization.made_articles import rows, write_jsonl
from tests.modelzoo.bert.fine_tuning.made_data import write_sst2, write_tagged, write_vocabulary
from tests.modelzoo.bert.fine_tuning.question_answering.made_squad import articles, write_squad

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "red", "hens", "run", "far"]
GPT = """\
model_name: gpt3
train_input:
    data_processor: GptTfRecordsProcessor
    data_dir: {folder}/out
    vocab_size: 257
    max_sequence_length: 16
    batch_size: 2
model: {{hidden_size: 8, num_hidden_layers: 1, num_heads: 2, filter_size: 16}}
optimizer: {{optimizer_type: sgd, learning_rate: 0.1}}
runconfig: {{max_steps: 2}}
"""
BERT = """\
model_name: bert
train_input:
    data_processor: {processor}
    data_dir: {folder}/out
    vocab_file: {folder}/vocab.txt
    max_sequence_length: 24
    max_predictions_per_seq: 4
    batch_size: 4
    buckets: 2
model:
    hidden_size: 8
    num_hidden_layers: 1
    num_heads: 2
    filter_size: 16
    use_segment_embedding: {nsp}
    disable_nsp: {no_nsp}
optimizer: {{optimizer_type: sgd, learning_rate: 0.1}}
runconfig: {{max_steps: 2}}
"""


@pytest.fixture
def prepare(tmp_path, capsys):
    """Returns a function that runs `prepare KIND` and gives exit code, output and errors."""

    def call(kind, *words):
        given = ["--output_dir", tmp_path / "out", "--processes", 1, *words]
        code = main(["prepare", kind, *map(str, given)])
        captured = capsys.readouterr()
        return code, captured.out, " ".join(captured.err.split())

    return call


def train(text, folder):
    """Trains on the records of a params file."""
    (folder / "params.yaml").write_text(text)
    words = ["-m", "train", "-p", folder / "params.yaml", "-o", folder / "model"]
    run.main([*map(str, words), "--device", "/cpu:0"])
    assert (folder / "model" / "model.ckpt-2.index").exists()


@pytest.fixture
def verse(tmp_path):
    """A text file of 1260 bytes."""
    path = tmp_path / "text.txt"
    path.write_text("so much depends upon a red wheel barrow glazed with rain water " * 20)
    return path


def test_gpt_makes_records_that_train(prepare, verse, tmp_path):
    flags = ["--input_dir", verse, "--tokenizer_type", "ByteTokenizer", "--max_seq_length", 16]
    code, out, err = prepare("gpt", *flags)
    assert code == 0, err
    assert "1 document, 1260 text_bytes, 1261 tokens, 78 records in 1 file" in out
    train(GPT.format(folder=tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("options", "processor"),
    [
        ((), "BertTfRecordsProcessor"),
        (("--mlm_only",), "BertMlmOnlyTfRecordsStaticMaskProcessor"),
        (("--mlm_only", "--disable_masking"), "BertMlmOnlyTfRecordsDynamicMaskProcessor"),
    ],
)
def test_bert_makes_records_that_train(options, processor, prepare, tmp_path):
    vocabulary, text = tmp_path / "vocab.txt", tmp_path / "text.txt"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    vocabulary.write_text("\n".join([*special, *WORDS]) + "\n")
    sentence = " ".join(WORDS).capitalize() + "."
    text.write_text("\n\n".join([" ".join([sentence] * 12)] * 5))
    flags = ["--input_dir", text, "--vocab_file", vocabulary, "--do_lower_case", *options]
    flags += ["--max_seq_length", 24, "--max_predictions_per_seq", 4]
    code, out, err = prepare("bert", *flags, "--multiple_docs_in_single_file")
    assert code == 0, err
    assert "5 documents, 60 sentences, 780 tokens" in out
    kind = {"processor": processor, "nsp": not options, "no_nsp": bool(options)}
    train(BERT.format(folder=tmp_path, **kind), tmp_path)


def test_bertsum_makes_records(prepare, tmp_path):
    flags = ["--input_dir", write_jsonl(tmp_path / "a.jsonl", rows(5)), "--do_lower_case"]
    flags += ["--vocab_file", write_vocabulary(tmp_path), "--max_sequence_length", 80]
    code, out, err = prepare("bertsum", *flags)
    assert code == 0, err
    assert "5 articles, 0 skipped_too_short, 0 skipped_without_label, 5 records" in out


@pytest.fixture
def glue(prepare, tmp_path):
    """Returns a function that prepares the made files of SST-2 with other options."""
    flags = ["--data_dir", write_sst2(tmp_path / "sst2")]
    flags += ["--vocab_file", write_vocabulary(tmp_path)]
    return lambda *words: prepare("glue", *flags, *words)


def test_glue_makes_records_of_both_uses_and_only_once(glue):
    flags = ("--task", "Sst2DataProcessor", "--max_seq_length", 24)
    code, out, err = glue(*flags)
    assert code == 0, err
    assert "64 rows, 64 records in 1 file" in out and "21 rows, 21 records in 1 file" in out
    assert glue(*flags)[1].count("nothing left to do") == 2


def test_ner_makes_every_split_that_is_there_and_the_labels(prepare, tmp_path):
    write_tagged(tmp_path / "data")
    flags = ["--data_dir", tmp_path / "data", "--vocab_file", write_vocabulary(tmp_path)]
    flags += ["--max_seq_length", 24, "--do_lower_case"]
    code, out, err = prepare("ner", *flags)
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()] == ["48", "13", "9"]
    labels = json.loads((tmp_path / "out/label2id.json").read_text())
    assert list(labels) == ["[PAD]", "B-Disease", "I-Disease", "O", "X", "[CLS]", "[SEP]"]
    files = {"train", "dev", "test", "label2id.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == files
    (tmp_path / "data/devel.tsv").write_text("pox\tB-Disease\nand\n")
    code, _, err = prepare("ner", *flags)
    assert code == 2 and names(err, "devel.tsv:2")
    (tmp_path / "data/devel.tsv").unlink()
    code, out, _ = prepare("ner", *flags)
    (line,) = [line for line in out.splitlines() if " has no " in line]
    assert code == 0 and names(line, "devel.tsv", "dev.tsv", f"{tmp_path}/out/dev")


def test_squad_makes_records_once_and_names_bad_answers(prepare, tmp_path):
    made = articles(20)
    made[2]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 999
    flags = ["--input_file", write_squad(tmp_path / "a.json", made), "--articles", "0:10"]
    flags += ["--vocab_file", write_vocabulary(tmp_path), "--do_lower_case", "--max_seq_length", 24]
    code, out, err = prepare("squad", *flags)
    assert code == 0 and names(err, "article 2", "q2-0")
    assert "20 questions, 1 skipped_answer, 0 without_answer, " in out
    assert "19 records in 2 files" in out
    assert "nothing left to do" in prepare("squad", *flags)[1]


def test_summarization_shows_what_it_made_and_what_it_skipped(prepare, tmp_path):
    made = [{"article": "a tale of rain and wheels", "highlights": "rain"}]
    made.append({"article": "", "highlights": "x"})
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    flags = ["--tokenizer_type", "ByteTokenizer", "--max_seq_length", 40]
    code, out, err = prepare("summarization", "--input_dir", tmp_path / "a.jsonl", *flags)
    assert code == 0, err
    assert "2 articles, 1 skipped_empty" in out and "1 record in 1 file" in out


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ("gpt --input_dir {verse} --tokenizer_type ByteTokenizer", ["0 records", "--max_seq_l"]),
        ("bert --vocab_file {vocab}", ["--input_dir", "--metadata_files"]),
        ("bertsum --input_dir {two} --vocab_file {vocab} --min_sentences_per_sequence 50",
         ["2 skipped_too_short", "--min_sentences_per_sequence"]),
        ("vocab --input_files {no} --algorithm bpe --vocab_size 99", ["no"]),
    ],
)  # fmt: skip
def test_what_makes_no_records_is_one_paragraph(words, facts, prepare, verse, tmp_path):
    paths = {"no": tmp_path / "no", "verse": verse, "vocab": write_vocabulary(tmp_path)}
    paths["two"] = write_jsonl(tmp_path / "a.jsonl", rows(2))
    code, _, err = prepare(*words.format(**paths).split())
    assert code == 2 and err.startswith("cerebras-tf: ") and "Traceback" not in err
    assert names(err, *facts)
