"""Trains the small classifiers on real data, on wafer and host; small siblings: test_run.py.

The whole runs are in the rooms' READMEs; here as many steps as show that the model learns.
"""

from __future__ import annotations

import collections
from pathlib import Path

import numpy as np
import pytest
import yaml

pytestmark = [pytest.mark.tf, pytest.mark.slow]
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.bert.fine_tuning.token_classifier.labels import read_sentences  # noqa: E402
from modelzoo.bert.fine_tuning.token_classifier.preparation import Settings, prepare  # noqa: E402
from modelzoo.common import run  # noqa: E402
from modelzoo.common.metrics.entities import entity_counts  # noqa: E402
from tests.modelzoo.bert.fine_tuning.made_data import DATA, VOCAB_FILE  # noqa: E402

CONFIGS = Path(__file__).resolve().parents[4] / "configs"
DEVICES = pytest.mark.parametrize("flags", [("--device", "/cpu:0"), ()], ids=["host", "wafer"])


def content(name):
    return yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))


def scores(tmp_path, tree, flags):
    """Trains and evaluates once, and returns the values of the evaluation by tag."""
    steps = tree["runconfig"]["max_steps"]
    tree["runconfig"]["save_checkpoints_steps"] = steps
    path = tmp_path / "params_x.yaml"
    path.write_text(yaml.safe_dump(tree))
    out = tmp_path / "out"
    for mode in ("train", "eval"):
        run.main(["-m", mode, "-p", str(path), "-o", str(out), *flags])
    values = {}
    for file in sorted((out / "eval").glob("events*")):
        for event in tf.train.summary_iterator(str(file)):
            values.update({v.tag: v.simple_value for v in event.summary.value})
    return values


@DEVICES
def test_sst2_from_scratch_reaches_78_percent(tmp_path, flags):
    if not (DATA / "sst2").is_dir():
        pytest.skip(f"{DATA / 'sst2'} is absent")
    tree = content("params_bert_small_sst2")
    for name in ("train_input", "eval_input"):
        tree[name]["data_dir"] = str(DATA / "sst2")
    tree["train_input"]["vocab_file"] = str(VOCAB_FILE)
    assert scores(tmp_path, tree, flags)["eval/accuracy_cls"] > 0.78


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
def test_ner_from_scratch_beats_the_most_frequent_tag_of_every_word(tmp_path, flags):
    data = DATA / "ner" / "ncbi-disease"
    if not data.is_dir():
        pytest.skip(f"{data} is absent")
    tree = content("params_bert_small_ncbi_disease")
    for split in ("train", "dev"):
        prepare(str(data), split, str(tmp_path), Settings(str(VOCAB_FILE), True, 128))
    tree["train_input"]["label_vocab_file"] = str(tmp_path / "label2id.json")
    tree["train_input"]["data_dir"] = str(tmp_path / "train")
    tree["eval_input"]["data_dir"] = str(tmp_path / "dev")
    del tree["predict_input"]
    tree["runconfig"]["max_steps"] = 1200
    train, dev = (read_sentences(data / f"{name}.tsv") for name in ("train", "devel"))
    baseline = most_frequent_tags(train, dev)
    assert 0.39 < baseline < 0.40
    assert scores(tmp_path, tree, flags)["eval/entity_f1"] > baseline + 0.05
