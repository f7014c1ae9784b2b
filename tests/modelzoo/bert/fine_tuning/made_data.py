"""Small data that fine-tuning tests make: a vocabulary, labelled sentences, tagged sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
GOOD = ["fine", "bright", "lovely", "warm"]
BAD = ["dull", "grey", "stale", "cold"]
PLAIN = ["the", "film", "was", "a", "story", "of", "rain", "and", ".", "play", "fever", "acute"]
VOCABULARY = [*SPECIAL, *GOOD, *BAD, *PLAIN, "##ing", "##s", "pox"]
DATA = Path(__file__).resolve().parents[5] / "shared" / "data"
VOCAB_FILE = DATA / "vocab" / "bert-base-uncased" / "vocab.txt"
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_heads": 2, "filter_size": 32}
MODEL = {**SIZES, "layer_norm_epsilon": 1e-5, "use_segment_embedding": True}


def write_vocabulary(folder, size=28):
    """Writes a vocab.txt of that many lines and returns its path."""
    path = folder / "vocab.txt"
    unused = [f"[unused{number}]" for number in range(size - len(VOCABULARY))]
    path.write_text("\n".join([*VOCABULARY, *unused]) + "\n", encoding="utf-8")
    return path


def sentences(count, seed=0):
    """Draws sentences of 2 to 12 words and their labels, 1 with good words, 0 with bad ones."""
    generator = np.random.default_rng(seed)
    drawn = []
    for _ in range(count):
        label = int(generator.integers(2))
        words = list(generator.choice(PLAIN, generator.integers(1, 10)))
        words += list(generator.choice((BAD, GOOD)[label], 2))
        drawn.append((" ".join(generator.permutation(words)), label))
    return drawn


def write_sst2(folder, counts=(("train", 64), ("dev", 21), ("test", 11))):
    """Writes files in the form of GLUE's SST-2 and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, count) in enumerate(counts):
        lines = [f"{text}\t{label}" for text, label in sentences(count, seed)]
        text = "\n".join(["sentence\tlabel", *lines]) + "\n"
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")
    return folder


def write_mnli(folder):
    """Writes files in the form of GLUE's MNLI, with more columns than are read."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = ("entailment", "neutral", "contradiction")
    for seed, name in enumerate(("train", "dev_matched", "dev_mismatched")):
        drawn = sentences(24, seed)
        lines = [
            f"{row}\t{first[0]}\t{second[0]}\t{labels[row % 3]}"
            for row, (first, second) in enumerate(zip(drawn, reversed(drawn)))
        ]
        text = "\n".join(["pairID\tsentence1\tsentence2\tgold_label", *lines]) + "\n"
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")
    return folder


def tagged_sentences(count, seed=0):
    """Draws sentences in which fevers and poxes are tagged; ``acute`` before one belongs to it."""
    generator = np.random.default_rng(seed)
    drawn = []
    for _ in range(count):
        rows = []
        for word in generator.choice(PLAIN[:9], generator.integers(1, 9)):
            rows.append((str(word), "O"))
            if generator.random() < 0.3:
                rows.append(("acute", "B-Disease"))
                rows.append((str(generator.choice(["fevers", "pox"])), "I-Disease"))
        drawn.append(rows)
    return drawn


def write_tagged(folder, counts=(("train", 48), ("devel", 13), ("test", 9))):
    """Writes train.tsv, devel.tsv and test.tsv in the form of BLURB and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, count) in enumerate(counts):
        parts = [
            "".join(f"{word}\t{tag}\n" for word, tag in rows)
            for rows in tagged_sentences(count, seed)
        ]
        (folder / f"{name}.tsv").write_text("\n".join(parts), encoding="utf-8")
    return folder
