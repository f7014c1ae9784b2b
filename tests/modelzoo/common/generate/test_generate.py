"""Tests of when completions end, on a model of one table: the next token depends on the last."""

from __future__ import annotations

import numpy as np
import pytest

from modelzoo.common.generate.generate import Request, generate
from modelzoo.common.generate.sampling import Sampler
from modelzoo.common.tokenizers.tokenizers import ByteTokenizer

LIMIT = 40


class TableDecoder:
    """Stands for a CachedDecoder: the logits are the row of the last token in a table."""

    def __init__(self, table):
        self.table = table
        self.last = None

    def start(self, prompts):
        self.last = np.array([prompt[-1] for prompt in prompts])
        return self.table[self.last]

    def append(self, tokens, active):
        self.last = np.where(active, tokens, self.last)
        return self.table[self.last]


def random_table():
    return np.random.default_rng(0).normal(0, 1.0, (257, 257)).astype(np.float32)


def cycle_table(text, end=False):
    """After each character of `text` comes the next; after its last its first, or the end."""
    table = np.zeros([257, 257], np.float32)
    codes = list(text.encode())
    for code, following in zip(codes, [*codes[1:], 256 if end else codes[0]]):
        table[code, following] = 20.0
    return table


def request(text, most=12, stop=(), **sampler):
    return Request(ByteTokenizer().encode(text), Sampler(**sampler), most, stop, text)


def complete(table, requests, batch_size=2, limit=LIMIT):
    return list(generate(TableDecoder(table), requests, ByteTokenizer(), batch_size, limit))


def test_completions_end_after_max_new_tokens():
    (done,) = complete(cycle_table("abc"), [request("xa", 7)])
    assert (done.text, done.finish_reason, len(done.log_probs)) == ("bcabcab", "length", 7)


def test_completions_end_at_the_end_of_text_which_is_a_token_but_no_text():
    (done,) = complete(cycle_table("abc", end=True), [request("a")])
    assert (done.text, done.tokens, done.finish_reason) == ("bc", [98, 99, 256], "end_of_text")


def test_completions_end_before_the_first_stop_text():
    (done,) = complete(cycle_table("abcd"), [request("a", stop=("da", "cd"))])
    assert (done.text, done.finish_reason) == ("b", "stop")
    assert bytes(done.tokens) == b"bcd"


def test_completions_end_where_the_model_has_no_more_positions():
    (done,) = complete(cycle_table("abc"), [request("a" * 5, 12)], limit=9)
    assert (done.text, done.finish_reason) == ("bcab", "length")


def test_completions_come_as_they_end():
    requests = [request("a", 9), request("b", 2), request("c", 1)]
    done = complete(cycle_table("abc"), requests, batch_size=2)
    assert [item.key for item in done] == ["b", "a", "c"]


@pytest.mark.parametrize("batch_size", [1, 2, 5, 8])
def test_drawn_completions_do_not_depend_on_the_batch(batch_size):
    def drawn(size):
        requests = [request(text, temperature=1.0, seed=(n,)) for n, text in enumerate("vwxyz")]
        complete(random_table(), requests, size)
        return [item.tokens for item in requests]

    assert drawn(batch_size) == drawn(3)
    assert len(set(map(tuple, drawn(batch_size)))) == 5
