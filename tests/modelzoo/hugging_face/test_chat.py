"""Weights of conversations. The expected ones are those of TRL 1.16 for the same tokenizers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.hugging_face import chat, preparation
from tests.messages import raises
from tests.modelzoo.hugging_face import chats

EXPECTED = json.loads(Path(__file__).with_name("trl_weights.json").read_text())


def spans(weights):
    """The runs of ones: pairs of start and end."""
    edges = np.flatnonzero(np.diff([0, *weights, 0]))
    return edges.reshape(-1, 2).tolist()


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: case["name"])
def test_tokens_and_weights_are_those_of_trl(case):
    encoder = chat.ChatEncoder(chats.make_tokenizer(getattr(chats, case["template"])))
    (example,) = encoder.encode(case["row"])
    assert example.ids.tolist() == case["ids"]
    assert spans(example.weights) == case["spans"]


def test_labels_are_the_next_tokens_with_a_weight():
    example = chat.ChatExample(np.array([5, 6, 7, 8], np.int32), np.array([0, 0, 1, 1], np.int32))
    assert example.labels.tolist() == [-100, 7, 8, -100]


def test_turns_of_a_template_that_renders_earlier_ones_differently_are_examples_of_their_own():
    tokenizer = chats.make_tokenizer(chats.THINKS)
    messages = chats.messages(chats.CONVERSATIONS[1])
    found = chat.ChatEncoder(tokenizer).encode({"messages": messages})
    texts = [tokenizer.decode(each.ids[each.weights == 1]) for each in found]
    assert texts == ["<think></think>It is late.<end>", "<think></think>Good night.\n<end>"]
    assert tokenizer.decode(found[1].ids).count("<think>") == 1


@pytest.mark.parametrize("template", ["TURNS", "MARKED", "THINKS"])
def test_turns_with_weight_0_do_not_count(template):
    tokenizer = chats.make_tokenizer(getattr(chats, template))
    messages = chats.messages(chats.CONVERSATIONS[1])
    first = next(each for each in messages if each["role"] == "assistant")
    found = chat.ChatEncoder(tokenizer).encode({"messages": messages})
    first["weight"] = 0
    left = chat.ChatEncoder(tokenizer).encode({"messages": messages})
    (text,) = (tokenizer.decode(each.ids[each.weights == 1]) for each in left)
    assert first["content"] not in text and "Good night." in text
    assert left[-1].ids.tolist() == found[-1].ids.tolist()
    greeted = [{"role": "assistant", "content": "Hello.", "weight": 0}, *messages]
    (text,) = (
        tokenizer.decode(each.ids[each.weights == 1])
        for each in chat.ChatEncoder(tokenizer).encode({"messages": greeted})
    )
    assert "Hello." not in text and "Good night." in text


def test_a_template_whose_stop_token_would_not_be_learned_is_refused():
    with raises(ConfigError, "chat_template", "chat-template-stop"):
        chat.ChatEncoder(chats.make_tokenizer(chats.NO_STOP))
    with raises(ConfigError, "chat_template", "has none"):
        chat.ChatEncoder(chats.make_tokenizer(None))


@pytest.mark.parametrize(
    "row, facts",
    [
        ({"text": "a"}, ["messages", "prompt", "text"]),
        ({"messages": []}, ["messages"]),
        ({"messages": [{"content": "a"}]}, ["role"]),
        ({"messages": chats.messages([("user", "a")])}, ["assistant"]),
        ({"prompt": "a", "completion": [1]}, ["messages", "a"]),
        ({"messages": [{"role": "user", "weight": 1}]}, ["weight", 1, "user"]),
        ({"messages": [{"role": "assistant", "weight": 0}]}, ["assistant", "weight 0"]),
        ({"messages": chats.messages([("assistant", "a"), ("user", "b")])}, ["before the first"]),
    ],
)
def test_other_rows_are_refused_with_their_line(row, facts, tmp_path):
    rows = [{"messages": chats.messages(chats.CONVERSATIONS[0])}, row]
    path = chats.write_rows(tmp_path / "rows.jsonl", rows)
    encoder = chat.ChatEncoder(chats.make_tokenizer())
    with raises(DataError, "rows.jsonl:2", *facts):
        chat.read_examples(encoder, path, 64)
    chats.make_tokenizer().save_pretrained(tmp_path / "model")
    with raises(DataError, "rows.jsonl:2", *facts):
        list(preparation.show([path], preparation.ChatSettings(str(tmp_path / "model")), 2))


def test_examples_that_lose_their_end_are_counted(tmp_path, caplog):
    rows = [{"messages": chats.messages(turns)} for turns in chats.CONVERSATIONS]
    path = chats.write_rows(tmp_path / "rows.jsonl", rows)
    encoder = chat.ChatEncoder(chats.make_tokenizer())
    examples = chat.read_examples(encoder, path, 60)
    assert [len(example.ids) for example in examples] == [46, 60]
    with raises(DataError, "max_sequence_length", "2 conversations"):
        chat.read_examples(encoder, path, 10)


def test_packing_fills_rows_without_losing_an_example():
    lengths = np.random.default_rng(0).integers(1, 40, 200).tolist()
    rows = chat.pack(lengths, 40)
    assert sorted(sum(rows, [])) == list(range(200))
    totals = [sum(lengths[number] for number in row) for row in rows]
    assert max(totals) <= 40 and len(rows) <= 1.06 * sum(lengths) / 40


def test_a_packed_row_restarts_its_positions():
    examples = [
        chat.ChatExample(np.arange(n, dtype=np.int32) + 1, np.ones(n, np.int32)) for n in (3, 2)
    ]
    row = chat.packed_row(examples, 7, pad_id=9)
    assert row["input_ids"].tolist() == [1, 2, 3, 1, 2, 9, 9]
    assert row["position_ids"].tolist() == [0, 1, 2, 0, 1, 0, 1]
    assert row["labels"].tolist() == [2, 3, -100, 2, -100, -100, -100]


def test_show_prints_each_token_with_its_weight(tmp_path):
    chats.make_tokenizer().save_pretrained(tmp_path / "model")
    rows = [{"messages": chats.messages(turns)} for turns in chats.CONVERSATIONS]
    path = chats.write_rows(tmp_path / "rows.jsonl", rows)
    settings = preparation.ChatSettings(str(tmp_path / "model"))
    first, tokens, *_ = preparation.show([path], settings, 2)
    assert first.startswith(f"{path}:1: 46 tokens, 16 with a weight")
    lines = tokens.splitlines()
    assert lines[0].split() == ["0", "259", "'<bos>'"]
    assert lines[-2].split()[::2] == ["1", "'<end>'"]
