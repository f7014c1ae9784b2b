"""Generates completions of prompts in batches."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from modelzoo.common.generate.sampling import Sampler

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


def generate(decoder, requests, tokenizer, batch_size, limit):
    """Completes requests, `batch_size` at a time.

    Every batch has the same number of rows, so that the model is compiled once. The last batch is
    padded with inactive rows.

    Args:
        tokenizer: an object with `decode` and `eos_id`.

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
                tokens[row] = _extend(batch[row], logits[row], tokenizer, limit)
                active[row] = not batch[row].finish_reason
                if not active[row]:
                    yield batch[row]
            if not active.any():
                break
            logits = decoder.append(tokens, active)


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
