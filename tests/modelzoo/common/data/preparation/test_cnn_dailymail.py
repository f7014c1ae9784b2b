"""Tests of modelzoo/common/data/preparation/cnn_dailymail.py: three forms of the same articles."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

from cerebras_tf.errors import DataError
from modelzoo.common.data.preparation.cnn_dailymail import read_articles

ARTICLES = [
    (["It rained .", "All day ."], ["Rain falls .", "People stay in ."]),
    (["Über den Wolken ."], ["Sun ."]),
]


def record(article, highlights):
    abstract = " ".join(f"<s> {text} </s>" for text in highlights)
    texts = {"article": "\n".join(article), "abstract": abstract}
    features = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
        for name, text in texts.items()
    }
    data = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return len(data).to_bytes(8, "little") + data


@pytest.fixture
def binary(tmp_path):
    path = tmp_path / "train.bin"
    path.write_bytes(b"".join(record(*article) for article in ARTICLES))
    return path


def test_all_forms_give_the_same_articles(tmp_path, binary):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(
            json.dumps({"article": "\n".join(article), "highlights": "\n".join(highlights)}) + "\n"
            for article, highlights in ARTICLES
        )
    )
    assert list(read_articles(str(rows))) == ARTICLES
    assert list(read_articles(str(binary))) == ARTICLES
    for number, (article, highlights) in enumerate(ARTICLES):
        story = tmp_path / f"{number}.story"
        parts = [*article, *(f"@highlight\n\n{text}" for text in highlights)]
        story.write_text("\n\n".join(parts), encoding="utf-8")
        assert list(read_articles(str(story))) == [ARTICLES[number]]


def test_parts_of_a_binary_file_are_its_articles_each_once(binary):
    size = binary.stat().st_size
    for middle in range(1, size, 7):
        read = []
        parts = [(0, middle), (middle, size)]
        found = [
            a for start, end in parts for a in read_articles(str(binary), start, end, read.append)
        ]
        assert found == ARTICLES and sum(read) == size


def test_a_cut_file_is_refused_with_the_byte(binary):
    data = binary.read_bytes()
    second = len(record(*ARTICLES[0]))
    for cut in (second + 4, len(data) - 1):
        binary.write_bytes(data[:cut])
        with pytest.raises(DataError, match=f"train.bin: at byte {second} "):
            list(read_articles(str(binary)))
