"""Small models learn from scratch on real data, as their pages show, by the same commands.

They skip where the data is absent. What they learn in seconds is tested in each task's test_run.py.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from modelzoo.common.fine_tuning.tag_labels import read_sentences
from modelzoo.common.metrics.entities import entity_counts

pytestmark = [
    pytest.mark.tf,
    pytest.mark.slow,
    pytest.mark.parametrize("flags", [["--device", "/cpu:0"], []], ids=["host", "wafer"]),
]
ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
UNCASED = "vocab/bert-base-uncased/vocab.txt"
LOWER = ["--vocab_file", "vocab.txt", "--do_lower_case"]


class WorkFolder:
    """The folder in which a page's commands are typed.

    Args:
        path: an empty folder.
        config: name of the YAML without ``params_`` and ending.
        links: what lies in the folder, by name: a path in the folder of data.
        flags: of the runner, such as the device.
    """

    def __init__(self, path, config, links, flags=()):
        self.path = path
        self._config = ROOT / "configs" / f"params_{config}.yaml"
        self._flags = flags
        for name, source in links.items():
            if not (DATA / source).exists():
                pytest.skip(f"{DATA / source} is absent")
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).symlink_to(DATA / source)

    def prepare(self, kind, *words):
        """Runs `cerebras-tf prepare`."""
        self._call("-m", "modelzoo.commands.main", "prepare", kind, *words)

    def run(self, mode, *words):
        """Runs the model zoo's runner into the folder ``out``."""
        params = ["-p", str(self._config), "-o", "out"]
        self._call("-m", "modelzoo.common.train.run", "-m", mode, *params, *self._flags, *words)

    def evaluations(self):
        """Returns the metrics of every evaluation, by step and name."""
        from tests.reading import scalars_of

        found = {}
        for (step, tag), value in scalars_of(self.path / "out" / "eval").items():
            found.setdefault(step, {})[tag] = value
        return found

    def last_evaluation(self):
        """Returns the metrics of the last evaluation by name."""
        found = self.evaluations()
        return found[max(found)]

    def scores(self):
        """Returns the scores of the last prediction by name."""
        text = (self.path / "out" / "predict" / "scores.json").read_text(encoding="utf-8")
        return list(json.loads(text).values())[-1]

    def _call(self, *words):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, *words], cwd=self.path, env=environment, check=True)


def test_gpt_learns_the_bytes_of_wikitext(tmp_path, flags):
    folder = WorkFolder(tmp_path, "gpt3_small_wikitext2", {"wikitext-2": "wikitext-2"}, flags)
    folder.run("train_and_eval")
    assert folder.evaluations()[1500]["eval/lm_perplexity"] < 4.0  # of a byte, on valid.txt


def test_bert_learns_the_masked_words_of_wikitext(tmp_path, flags):
    links = {"wikitext-2": "wikitext-2", "vocab.txt": UNCASED}
    folder = WorkFolder(tmp_path, "bert_small_wikitext2", links, flags)
    options = "--wikitext-detokenize --multiple_docs_in_single_file --mlm_only --disable_masking"
    options += " --short_seq_prob 0 --allow_cross_document_examples"
    for split in ("train", "valid"):
        out = f"wikitext2_uncased_msl128/{split}"
        words = ["--input_dir", f"wikitext-2/{split}.txt", "--output_dir", out]
        folder.prepare("bert", *words, *LOWER, *options.split())
    folder.run("train_and_eval")
    losses = [values["loss"] for _, values in sorted(folder.evaluations().items())]
    assert len(losses) == 4 and losses == sorted(losses, reverse=True)
    assert losses[-1] < 6.25


def test_the_transformer_translates_captions_with_more_than_22_bleu(tmp_path, flags):
    files = [
        f"multi30k/{split}.{side}" for split in ("train", "val", "test") for side in ("en", "de")
    ]
    links = {name: name for name in files}
    folder = WorkFolder(tmp_path, "transformer_small_multi30k", links, flags)
    inputs = ["--input_files", "multi30k/train.en", "multi30k/train.de"]
    size = ["--algorithm", "bpe", "--vocab_size", "6000", "--output_dir", "multi30k/vocab"]
    folder.prepare("vocab", *inputs, *size)
    folder.run("train")
    folder.run("predict")
    assert folder.scores()["bleu"] > 22


def test_sst2_reaches_78_percent(tmp_path, flags):
    links = {f"sst2/{split}.tsv": f"sst2/{split}.tsv" for split in ("train", "dev")}
    folder = WorkFolder(tmp_path, "bert_small_sst2", {**links, "sst2/vocab.txt": UNCASED}, flags)
    folder.run("train_and_eval")
    assert folder.last_evaluation()["eval/accuracy_cls"] > 0.78


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


def test_ner_beats_the_most_frequent_tag_of_every_word(tmp_path, flags):
    links = {"ncbi-disease": "ner/ncbi-disease", "vocab.txt": UNCASED}
    folder = WorkFolder(tmp_path, "bert_small_ncbi_disease", links, flags)
    out = ["--output_dir", "ncbi_disease_msl128"]
    folder.prepare("ner", "--data_dir", "ncbi-disease", *LOWER, *out)
    folder.run("train_and_eval")
    tags = DATA / "ner" / "ncbi-disease"
    baseline = most_frequent_tags(*(read_sentences(tags / f"{n}.tsv") for n in ("train", "devel")))
    assert 0.39 < baseline < 0.40
    assert folder.last_evaluation()["eval/entity_f1"] > baseline + 0.1


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


def test_bertsum_beats_random_sentences(tmp_path, flags):
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
