"""Small fine-tuning models learn from scratch on real data, as their pages say.

Their small siblings are the rooms' test_run.py.
"""

from __future__ import annotations

import collections

import numpy as np
import pytest

pytestmark = [pytest.mark.tf, pytest.mark.slow]
pytest.importorskip("tensorflow")

from modelzoo.bert.fine_tuning.token_classifier.labels import read_sentences
from modelzoo.common.metrics.entities import entity_counts
from tests.modelzoo.real_data import DATA, DEVICES, UNCASED, WorkFolder

LOWER = ["--vocab_file", "vocab.txt", "--do_lower_case"]


def last_evaluation(folder):
    return folder.evaluations()[max(folder.evaluations())]


@DEVICES
def test_sst2_reaches_78_percent(tmp_path, flags):
    links = {f"sst2/{split}.tsv": f"sst2/{split}.tsv" for split in ("train", "dev")}
    folder = WorkFolder(tmp_path, "bert_small_sst2", {**links, "sst2/vocab.txt": UNCASED}, flags)
    folder.run("train_and_eval")
    assert last_evaluation(folder)["eval/accuracy_cls"] > 0.78


def most_frequent_tags(train, sentences):
    """Entity F1 of giving every word the tag it most often has in training, O to new ones."""
    seen = collections.defaultdict(collections.Counter)
    for sentence in train:
        for word, tag in zip(sentence.words, sentence.tags):
            seen[word.lower()][tag] += 1
    best = {word: tags.most_common(1)[0][0] for word, tags in seen.items()}
    total = np.zeros(3, np.int64)
    for sentence in sentences:
        guesses = [best.get(word.lower(), "O") for word in sentence.words]
        total += entity_counts(sentence.tags, guesses)
    found, predicted, true = total
    return 2 * found / (predicted + true)


@DEVICES
def test_ner_beats_the_most_frequent_tag_of_every_word(tmp_path, flags):
    links = {"ncbi-disease": "ner/ncbi-disease", "vocab.txt": UNCASED}
    folder = WorkFolder(tmp_path, "bert_small_ncbi_disease", links, flags)
    out = ["--output_dir", "ncbi_disease_msl128"]
    folder.prepare("ner", "--data_dir", "ncbi-disease", *LOWER, *out)
    folder.run("train_and_eval")
    tags = DATA / "ner" / "ncbi-disease"
    baseline = most_frequent_tags(*(read_sentences(tags / f"{n}.tsv") for n in ("train", "devel")))
    assert 0.39 < baseline < 0.40
    assert last_evaluation(folder)["eval/entity_f1"] > baseline + 0.1


@DEVICES
def test_squad_beats_answers_that_need_no_model(tmp_path, flags):
    links = {
        "vocab.txt": UNCASED,
        "squad/dev-v1.1.json": "squad/dev-v1.1.json",
        "squad/train-v1.1.json": "squad/train-v1.1-subset.json",
    }
    folder = WorkFolder(tmp_path, "bert_small_squad", links, flags)
    for name, out, articles in (
        ("train", "train", []),
        ("dev", "dev_38_articles", ["--articles", "0:38"]),
        ("dev", "dev_10_articles", ["--articles", "38:48"]),
    ):
        words = ["--input_file", f"squad/{name}-v1.1.json", "--output_dir", f"squad_msl384/{out}"]
        more = [*LOWER, "--max_seq_length", "384", *articles]
        folder.prepare("squad", *words, *more)
    folder.run("train_and_eval")
    folder.run("predict")
    scores = folder.scores()
    for baseline in ("random-span", "first-words", "closest-sentence"):
        assert scores["f1"] > scores[f"{baseline}/f1"]
        assert scores["exact_match"] > scores[f"{baseline}/exact_match"]


@DEVICES
def test_bertsum_beats_sentences_drawn_by_lot(tmp_path, flags):
    links = {"train.jsonl": "cnn_dm/train.jsonl", "validation.jsonl": "cnn_dm/validation.jsonl"}
    folder = WorkFolder(tmp_path, "bert_small_bertsum", {**links, "vocab.txt": UNCASED}, flags)
    rows = (tmp_path / "validation.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "cnn_dm" / "learnt").mkdir(parents=True)
    (tmp_path / "cnn_dm" / "learnt" / "train.jsonl").symlink_to(DATA / "cnn_dm" / "train.jsonl")
    for name, part in (("learnt/validation.jsonl", rows[:900]), ("heldout.jsonl", rows[-100:])):
        (tmp_path / "cnn_dm" / name).write_text("\n".join(part) + "\n", encoding="utf-8")
    for source, out in (("cnn_dm/learnt", "train"), ("cnn_dm/heldout.jsonl", "heldout")):
        words = ["--input_dir", source, "--output_dir", f"cnn_dm_bertsum_msl512/{out}"]
        folder.prepare("bertsum", *words, *LOWER)
    folder.run("train_and_eval")
    folder.run("predict")
    scores = folder.scores()
    assert scores["rouge1-f1_score"] > scores["random-3/rouge1-f1_score"] + 2
    assert scores["rouge2-f1_score"] > scores["random-3/rouge2-f1_score"] + 1
