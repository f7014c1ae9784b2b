"""Generates completions of prompts: in batches, or one token by token."""

import math
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from modelzoo.common.generate.sampling import Sampler

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
END_OF_TEXT, STOP, LENGTH = "end_of_text", "stop", "length"


@dataclass
class Request:
    """A prompt and its completion.

    Attributes:
        prompt: [n] tokens, at least one.
        max_new_tokens: maximum number of tokens of the completion.
        stop: strings; the completion ends before the first one.
        key: an object of the caller that identifies the request.
        tokens: tokens generated so far, the end of text included.
        log_probs: log-probability of each under the model, before penalty, temperature and
            filters.
        text: decoded `tokens`, up to a stop string.
        finish_reason: END_OF_TEXT, STOP or LENGTH once the completion has ended.
    """

    prompt: np.ndarray
    sampler: Sampler
    max_new_tokens: int
    stop: tuple = ()
    key: Any = None
    tokens: list = field(default_factory=list)
    log_probs: list = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""


def generate(decoder, requests, tokenizer, batch_size, limit, advance=lambda count: None):
    """Completes requests, `batch_size` at a time.

    Every batch has the same number of rows, so that the model is compiled once. The last batch is
    padded with inactive rows.

    Args:
        tokenizer: an object with `decode` and `eos_id`.
        advance: called with the number of tokens after every step; tokens that a completion did not
            need count when it ends.

    Yields:
        Each request once its completion has ended.
    """
    for start in range(0, len(requests), batch_size):
        batch = requests[start : start + batch_size]
        prompts = [request.prompt for request in batch]
        prompts += [prompts[0][:1]] * (batch_size - len(batch))
        logits = decoder.start(prompts)
        tokens = np.zeros(batch_size, np.int32)
        active = np.arange(batch_size) < len(batch)
        while True:
            for row in np.flatnonzero(active):
                request = batch[row]
                tokens[row] = _extend(request, logits[row], tokenizer, limit)
                active[row] = not request.finish_reason
                left = request.max_new_tokens - len(request.tokens)
                advance(1 if active[row] else 1 + left)
                if not active[row]:
                    yield request
            if not active.any():
                break
            logits = decoder.append(tokens, active)


def stream(decoder, request, tokenizer, limit):
    """Completes one request, and yields it after every token.

    The model has `limit` positions. When they are full, the second half of the tokens becomes the
    prompt of the rest, so that a completion can have any length.

    Args:
        tokenizer: an object with `decode` and `eos_id`.
    """
    tokens = [int(token) for token in request.prompt]
    logits = decoder.start([np.array(tokens[-limit:], np.int32)])
    while True:
        tokens.append(_extend(request, logits[0], tokenizer, math.inf))
        yield request
        if request.finish_reason:
            return
        if decoder.lengths[0] < limit:
            logits = decoder.append(np.array(tokens[-1:], np.int32))
        else:
            logits = decoder.start([np.array(tokens[-max(limit // 2, 1) :], np.int32)])


class TextStream:
    """Writes the text of a completion as its tokens are generated.

    What may be the beginning of a character or of a stop string waits for the next token.

    Args:
        write: called with each new piece of text.
        tokenizer: an object with `decode`.
    """

    def __init__(self, write, tokenizer):
        self._write = write
        self._tokenizer = tokenizer
        self._written = 0

    def update(self, request):
        """Writes what is new."""
        text = request.text
        if not request.finish_reason:
            text = self._tokenizer.decode(request.tokens).rstrip("\ufffd")
            text = text[: len(text) - max(map(partial(_begun, text), request.stop), default=0)]
        if len(text) > self._written:
            self._write(text[self._written :])
            self._written = len(text)


def without_controls(text):
    """Replaces control characters by U+FFFD, except tab and line break, to show on a terminal."""
    return CONTROLS.sub("\ufffd", text)


def _begun(text, stop):
    """Returns how many characters at the end of a text may begin a stop string."""
    lengths = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)


def _extend(request, logits, tokenizer, limit):
    """Samples the next token of a request, and sets finish_reason if it is the last one."""
    token, log_prob = request.sampler.choose(logits, (request.prompt, request.tokens))
    request.tokens.append(token)
    request.log_probs.append(log_prob)
    if token == tokenizer.eos_id:
        request.finish_reason = END_OF_TEXT
    elif request.stop and _find_stop(request, tokenizer.decode(request.tokens)) is not None:
        request.finish_reason = STOP
    elif (
        len(request.tokens) >= request.max_new_tokens
        or len(request.prompt) + len(request.tokens) >= limit
    ):
        request.finish_reason = LENGTH
    if request.finish_reason:
        ended = request.finish_reason == END_OF_TEXT
        text = tokenizer.decode(request.tokens[:-1] if ended else request.tokens)
        request.text = text[: _find_stop(request, text)]
    return token


def _find_stop(request, text):
    """Returns the index of the first stop string, None without one."""
    found = [text.find(stop) for stop in request.stop]
    return min((place for place in found if place >= 0), default=None)
