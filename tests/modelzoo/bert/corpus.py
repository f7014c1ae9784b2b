"""A vocabulary and documents made up for the tests of BERT's data; no test itself."""

from __future__ import annotations

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)]
VOCABULARY = [*SPECIAL, ".", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
PAD, UNK, CLS, SEP, MASK = range(5)


def write_vocabulary(folder):
    """Writes vocab.txt and returns its path."""
    path = folder / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return str(path)


def write_documents(folder, count=8, sentences=12):
    """Writes documents, a blank line between them: every word is in the vocabulary, in parts."""
    lines = []
    for document in range(count):
        for sentence in range(sentences):
            start = document * 5 + sentence
            words = [
                "".join(LETTERS[(start + i + j) % 26] for j in range(1 + i % 3))
                for i in range(3 + sentence % 4)
            ]
            lines.append(" ".join(words).capitalize() + ".")
        lines.append("")
    path = folder / "documents.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)
