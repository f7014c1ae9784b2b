"""Records and prompts of summarization: what they hold, and what is left out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.gptj import preparation
from modelzoo.gptj.preparation import Assembler, SummarizationSettings, prepare, write_prompts
from tests.messages import raises
from tests.reading import records_of

EOS, SEP, PAD = 9, 8, 7
BYTES = SummarizationSettings("ByteTokenizer", max_seq_length=64)
REAL = Path(__file__).resolve().parents[4] / "shared" / "data"
ARTICLES = [
    ("A long tale of rain.\n\nAnd of wheels.", ["Rain and", "wheels."]),
    ("Short.", ["A summary that is longer than its article."]),
    ("", ["Nothing to sum up."]),
    ("Words " * 30, ["Too many."]),
]


def write_rows(folder):
    folder.mkdir()
    rows = [
        {"id": str(number), "article": article, "highlights": " \n".join(highlights)}
        for number, (article, highlights) in enumerate(ARTICLES)
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [str(folder)]


def write_stories(folder):
    folder.mkdir()
    for number, (article, highlights) in enumerate(ARTICLES):
        marked = "".join(f"\n\n@highlight\n\n{highlight}" for highlight in highlights)
        (folder / f"{number}.story").write_text(article + marked + "\n")
    return [str(folder)]


def test_record_is_laid_out_as_documented():
    record = Assembler(9, EOS, SEP, PAD).assemble(np.array([1, 2, 3]), np.array([4, 5]))
    assert record["input_ids"].tolist() == [EOS, 1, 2, 3, SEP, 4, 5, PAD, PAD]
    assert record["labels"].tolist() == [1, 2, 3, EOS, 4, 5, EOS, PAD, PAD]
    assert record["input_mask"].tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0]


def test_labels_that_count_are_the_next_inputs():
    for length in (7, 8, 20):
        record = Assembler(length, EOS, EOS - 1, EOS).assemble([1, 2, 3], [4, 5])
        following = [*record["input_ids"][1:], EOS]
        counted = np.flatnonzero(record["input_mask"])
        assert [record["labels"][i] for i in counted] == [following[i] for i in counted]
        assert [record["labels"][i] for i in counted] == [4, 5, EOS]


@pytest.mark.parametrize(
    ("article", "abstract", "reason"),
    [
        ([], [1], "skipped_empty"),
        ([1], [], "skipped_empty"),
        ([1], [1, 2], "skipped_longer_abstract"),
        ([1, 2, 3, 4, 5], [1, 2], "skipped_too_long"),
    ],
)
def test_articles_that_make_no_record_are_counted_by_reason(article, abstract, reason):
    assembler = Assembler(8, EOS, SEP, PAD)
    assert assembler.assemble(article, abstract) is None
    assert assembler.counts[reason] == 1 and sum(assembler.counts.values()) == 2


def test_article_is_cut_on_demand_but_never_its_abstract():
    assembler = Assembler(8, EOS, SEP, PAD, truncate_article=True)
    record = assembler.assemble([1, 2, 3, 4, 5, 6], [4, 5])
    assert record["input_ids"].tolist() == [EOS, 1, 2, 3, 4, SEP, 4, 5]
    assert record["labels"].tolist() == [1, 2, 3, 4, EOS, 4, 5, EOS]
    assert assembler.counts["truncated"] == 1
    assert assembler.assemble(list(range(9)), list(range(6))) is None
    assert assembler.counts["skipped_too_long"] == 1


def test_rows_and_stories_make_the_same_records(tmp_path):
    made = []
    for name, write in (("rows", write_rows), ("stories", write_stories)):
        manifest = prepare(write(tmp_path / name), tmp_path / f"{name}_out", BYTES)
        made.append((manifest["counts"], records_of(tmp_path / f"{name}_out")))
        assert (manifest["eos_id"], manifest["sep_id"], manifest["pad_id"]) == (256, 257, 256)
        assert manifest["vocab_size"] == 258
    assert made[0] == made[1] and made[0][0]["records"] == 1
    assert made[0][0]["skipped_empty"] == made[0][0]["skipped_longer_abstract"] == 1
    (row,) = made[0][1]
    kept = [i for i in row["labels"] if i < 256]
    assert bytes(kept).decode() == "A long tale of rain. And of wheels.Rain and\nwheels."


def test_truncated_articles_fill_their_record(tmp_path):
    settings = dataclasses.replace(BYTES, truncate_article=True)
    manifest = prepare(write_rows(tmp_path / "in"), tmp_path / "out", settings)
    rows = records_of(tmp_path / "out")
    assert manifest["counts"]["truncated"] == 1 and len(rows) == 2
    assert 256 not in rows[1]["input_ids"][1:] and rows[1]["labels"][-1] == 256


def test_length_without_room_for_text_is_refused(tmp_path):
    with raises(ConfigError, "max_seq_length", 4):
        prepare([str(tmp_path)], tmp_path, dataclasses.replace(BYTES, max_seq_length=3))


@pytest.mark.slow
def test_real_articles_keep_their_summaries(tmp_path):
    if not REAL.is_dir():
        pytest.skip(f"needs the real data in {REAL.name} beside the checkout")
    settings = SummarizationSettings(
        "GPT2Tokenizer",
        str(REAL / "vocab/gpt2/vocab.bpe"),
        str(REAL / "vocab/gpt2/encoder.json"),
        truncate_article=True,
    )
    source = REAL / "cnn_dm/train.jsonl"
    manifest = prepare([str(source)], tmp_path / "out", settings)
    rows = records_of(tmp_path / "out")
    assert manifest["counts"]["articles"] == len(rows) == 100 and manifest["sep_id"] == 50257
    tokenizer = preparation.load_tokenizer(settings)
    for row, line in zip(rows, source.read_text("utf-8").splitlines()):
        counted = [t for t, m in zip(row["labels"], row["input_mask"]) if m]
        assert counted[-1] == tokenizer.eos_id == 50256
        wanted = [" ".join(part.split()) for part in json.loads(line)["highlights"].split("\n")]
        assert tokenizer.decode(counted) == "\n".join(part for part in wanted if part)


BYTE_EOS, BYTE_SEP = 256, 257
SETTINGS = SummarizationSettings("ByteTokenizer", max_seq_length=24)


def write_articles(path, rows):
    texts = [
        {"id": "1", "article": article, "highlights": highlights} for article, highlights in rows
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in texts))
    return [str(path)]


def test_prompt_is_the_article_cut_to_leave_room_between_its_marks(tmp_path):
    inputs = write_articles(
        tmp_path / "a.jsonl", [("short", "S."), ("long " * 9, "L.\nM."), ("x", "")]
    )
    path, count = write_prompts(inputs, tmp_path / "out", SETTINGS, max_new_tokens=10)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert count == 2
    assert rows[0] == {"prompt_tokens": [BYTE_EOS, *b"short", BYTE_SEP], "reference": "S."}
    assert rows[1] == {
        "prompt_tokens": [BYTE_EOS, *b"long long lo", BYTE_SEP],
        "reference": "L.\nM.",
    }
    assert len(rows[1]["prompt_tokens"]) + 10 == SETTINGS.max_seq_length


def test_other_prompts_are_not_replaced(tmp_path):
    inputs = write_articles(tmp_path / "a.jsonl", [("a longer article", "S.")])
    path, _ = write_prompts(inputs, tmp_path, SETTINGS, max_new_tokens=10)
    before = path.read_text()
    write_prompts(inputs, tmp_path, SETTINGS, max_new_tokens=10)
    with raises(ConfigError, "prompts.jsonl"):
        write_prompts(inputs, tmp_path, SETTINGS, max_new_tokens=15)
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("changes", "text", "most", "kind", "facts"),
    [
        ({"eos_id": 5}, "a longer article", 10, ConfigError, ("eos_id",)),
        ({"sep_id": -5}, "a longer article", 10, ConfigError, ("sep_id",)),
        ({"sep_id": 258}, "a longer article", 10, ConfigError, ("sep_id",)),
        ({"pad_id": 99999999999}, "a longer article", 10, ConfigError, ("pad_id",)),
        ({}, "a longer article", 22, ConfigError, ("--prompts", 24)),
        ({}, "", 10, DataError, ("article",)),
    ],
)
def test_what_makes_no_prompts_is_refused(tmp_path, changes, text, most, kind, facts):
    inputs = write_articles(tmp_path / "a.jsonl", [(text, "S.")])
    with raises(kind, *facts):
        write_prompts(inputs, tmp_path, dataclasses.replace(SETTINGS, **changes), most)
