"""Choosing tokens, against definitions and Hugging Face; when completions end."""

from __future__ import annotations

import numpy as np
import pytest

from modelzoo.common.generate.generate import (
    Request,
    TextStream,
    generate,
    stream,
    without_controls,
)
from modelzoo.common.generate.sampling import (
    Sampler,
    filter_top_k,
    filter_top_p,
    log_softmax,
    penalize_repetition,
)
from modelzoo.common.tokenizers.tokenizers import ByteTokenizer


def logits(size=20, seed=0):
    return np.random.default_rng(seed).normal(0, 2, size)


def kept(values):
    return set(np.flatnonzero(np.isfinite(values)))


@pytest.mark.parametrize("k", [1, 3, 19, 20, 50])
def test_top_k_keeps_the_k_likeliest_as_they_are(k):
    values = logits()
    filtered = filter_top_k(values, k)
    assert kept(filtered) == set(sorted(range(20), key=lambda token: -values[token])[:k])
    np.testing.assert_array_equal(filtered[list(kept(filtered))], values[list(kept(filtered))])


@pytest.mark.parametrize("p", [1e-9, 0.3, 0.5, 0.9, 0.999, 1.0])
def test_top_p_keeps_the_fewest_likeliest_that_make_up_p(p):
    values = logits(seed=1)
    probabilities = np.exp(values) / np.exp(values).sum()
    nucleus, mass = set(), 0.0
    for token in sorted(range(20), key=lambda token: -values[token]):
        if mass >= p:
            break
        nucleus.add(token)
        mass += probabilities[token]
    assert kept(filter_top_p(values, p)) == nucleus


def test_filters_equal_hugging_faces():
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    for seed in range(5):
        values = logits(50, seed)
        scores = torch.tensor(values[None])
        for k in (1, 5, 40):
            expected = process.TopKLogitsWarper(k)(None, scores)[0].numpy()
            np.testing.assert_array_equal(filter_top_k(values, k), expected)
        for p in (0.2, 0.7, 0.95):
            expected = process.TopPLogitsWarper(p)(None, scores)[0].numpy()
            np.testing.assert_array_equal(filter_top_p(values, p), expected)


@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.2, 5.0])
def test_penalty_of_repetitions_is_hugging_faces(penalty):
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    for seed in range(5):
        values, tokens = logits(50, seed), np.random.default_rng(seed).integers(0, 50, 12)
        processor = process.RepetitionPenaltyLogitsProcessor(penalty)
        expected = processor(torch.tensor(tokens[None]), torch.tensor(values[None]))[0].numpy()
        np.testing.assert_allclose(
            penalize_repetition(values, tokens, penalty), expected, rtol=1e-12
        )


def test_penalty_divides_likely_tokens_and_multiplies_unlikely_ones():
    values = np.array([2.0, -2.0, 2.0, -2.0])
    assert penalize_repetition(values, [0, 1, 0], 2.0).tolist() == [1.0, -4.0, 2.0, -2.0]
    assert values[0] == 2.0 and penalize_repetition(values, [], 2.0).tolist() == values.tolist()


def test_penalty_reaches_tokens_of_prompt_and_completion_and_no_log_probability():
    values = np.array([3.0, 2.9, 2.8])
    sampler = Sampler(repetition_penalty=1.5)
    token, log_prob = sampler.choose(values, ([0], [1, 1]))
    assert token == 2 and log_prob == pytest.approx(log_softmax(values)[2])
    assert sampler.choose(values)[0] == 0
    drawn = Sampler(1.0, seed=(1,), repetition_penalty=1e9)
    assert {drawn.choose(values - 2.0, ([0], []))[0] for _ in range(99)} == {0, 1, 2}


def test_temperature_zero_takes_the_likeliest_and_low_temperatures_come_near():
    values = logits()
    assert {Sampler(0.0, seed=(n,)).choose(values)[0] for n in range(5)} == {values.argmax()}
    assert {Sampler(0.01, seed=(n,)).choose(values)[0] for n in range(50)} == {values.argmax()}
    assert {Sampler(5.0, top_k=1, seed=(n,)).choose(values)[0] for n in range(5)} == {
        values.argmax()
    }


def test_draws_have_the_probabilities_of_the_softmax_at_the_temperature():
    values = np.array([0.0, 1.0, 2.0])
    sampler = Sampler(2.0, seed=(3,))
    counts = np.bincount([sampler.choose(values)[0] for _ in range(4000)], minlength=3)
    np.testing.assert_allclose(counts / 4000, np.exp(log_softmax(values / 2.0)), atol=0.03)


def test_draws_stay_within_the_filters():
    values = logits()
    allowed = kept(filter_top_p(filter_top_k(values, 5), 0.8))
    sampler = Sampler(1.0, top_k=5, top_p=0.8, seed=(0,))
    assert {sampler.choose(values)[0] for _ in range(300)} == allowed


def test_log_probability_is_that_of_the_model_whatever_the_temperature():
    values = logits()
    token, log_prob = Sampler(3.0, top_k=4, seed=(1,)).choose(values)
    assert log_prob == pytest.approx(np.log(np.exp(values[token]) / np.exp(values).sum()))


def test_same_seed_draws_the_same_and_another_does_not():
    def draw(seed):
        sampler = Sampler(1.0, seed=seed)
        return [sampler.choose(logits(seed=n))[0] for n in range(20)]

    assert draw((1, 2, 3)) == draw((1, 2, 3)) != draw((1, 2, 4))


LIMIT = 40


class TableDecoder:
    """Stands for a CachedDecoder: the logits are the row of the last token in a table."""

    def __init__(self, table):
        self.table = table
        self.last = None

    def start(self, prompts):
        self.last = np.array([prompt[-1] for prompt in prompts])
        self.lengths = np.array(list(map(len, prompts)))
        return self.table[self.last]

    def append(self, tokens, active=True):
        self.last = np.where(active, tokens, self.last)
        self.lengths = self.lengths + 1
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


ABC, ABC_END, ABCD = cycle_table("abc"), cycle_table("abc", end=True), cycle_table("abcd")


@pytest.mark.parametrize(
    ("table", "asked", "limit", "text", "tokens", "reason"),
    [
        (ABC, request("xa", 7), LIMIT, "bcabcab", b"bcabcab", "length"),
        (ABC, request("a" * 5, 12), 9, "bcab", b"bcab", "length"),  # has no more positions
        (ABC_END, request("a"), LIMIT, "bc", [98, 99, 256], "end_of_text"),
        (ABCD, request("a", stop=("da", "cd")), LIMIT, "b", b"bcd", "stop"),
    ],
    ids=["max_new_tokens", "positions", "end", "stop"],
)
def test_completions_end_for_a_reason(table, asked, limit, text, tokens, reason):
    (done,) = complete(table, [asked], limit=limit)
    assert (done.text, list(done.tokens), done.finish_reason) == (text, list(tokens), reason)
    assert len(done.log_probs) == len(tokens)


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


@pytest.mark.parametrize(
    ("text", "stop", "pieces"),
    [
        ("abcd", (), ["a", "b", "c", "d"]),
        ("a\u00e9\u20ac", (), ["a", "\u00e9", "\u20ac"]),  # of one, two and three bytes
        ("abcxcdef", ("cdx", "cde"), ["a", "b", "cx"]),
    ],
)
def test_text_is_written_once_it_is_complete(text, stop, pieces):
    codes = [*text.encode(), 256]

    class Script(TableDecoder):
        """Generates the bytes of the text, whatever came before."""

        def append(self, tokens, active=True):
            self.lengths = self.lengths + 1
            return self._next()

        def start(self, prompts):
            self.lengths, self.codes = np.array([1]), iter(codes)
            return self._next()

        def _next(self):
            row = np.zeros([1, 257], np.float32)
            row[0, next(self.codes)] = 20.0
            return row

    written = []
    output = TextStream(written.append, ByteTokenizer())
    asked = request("x", 99, stop)
    for done in stream(Script(None), asked, ByteTokenizer(), LIMIT):
        output.update(done)
    assert written == pieces
    assert asked.text == "".join(pieces)


def test_a_stream_continues_beyond_the_positions_of_the_model():
    starts = []

    class Counted(TableDecoder):
        def start(self, prompts):
            starts.append(bytes(prompts[0].tolist()))
            return super().start(prompts)

    asked = request("xxxxxxxa", 9)
    list(stream(Counted(ABC), asked, ByteTokenizer(), 6))
    assert asked.text == "bcabcabca"
    assert starts == [b"xxxxxa", b"xab", b"abc"]


def test_control_characters_are_not_shown():
    assert without_controls("a\x1b[31m\tb\r\n\x00\x9b") == "a\ufffd[31m\tb\ufffd\n\ufffd\ufffd"
