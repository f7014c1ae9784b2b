"""Completes prompts in batches until each ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from modelzoo.common.generate.sampling import Sampler

END_OF_TEXT, STOP, LENGTH = "end_of_text", "stop", "length"


@dataclass
class Request:
    """A completion to make, and as far as it is made.

    Attributes:
        prompt: [n] tokens, at least one.
        sampler: chooses its tokens.
        max_new_tokens: it ends after as many.
        stop: texts it ends before.
        key: what the caller knows it by.
        tokens: what was chosen, the end of text included.
        log_probs: log-probability of each under the model, before penalty, temperature and
            filters.
        text: what `tokens` decode to, up to a stop text.
        finish_reason: END_OF_TEXT, STOP or LENGTH once it has ended.
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

    Every batch has as many rows, so that the model is compiled once; the last is filled up with
    rows that are never asked for.

    Args:
        decoder: CachedDecoder.
        requests: list of Request; they are changed.
        tokenizer: with `decode` and `eos_id`.
        batch_size: rows of a batch.
        limit: most tokens of prompt and completion.

    Yields:
        Each request once it has ended.
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
    """Chooses the next token of a request, and ends it where that is its last."""
    token, log_prob = request.sampler.choose(logits, (request.prompt, request.tokens))
    request.tokens.append(token)
    request.log_probs.append(log_prob)
    if token == tokenizer.eos_id:
        request.finish_reason = END_OF_TEXT
    elif request.stop and _stop_at(request, tokenizer.decode(request.tokens)) is not None:
        request.finish_reason = STOP
    elif (
        len(request.tokens) >= request.max_new_tokens
        or len(request.prompt) + len(request.tokens) >= limit
    ):
        request.finish_reason = LENGTH
    if request.finish_reason:
        ended = request.finish_reason == END_OF_TEXT
        text = tokenizer.decode(request.tokens[:-1] if ended else request.tokens)
        request.text = text[: _stop_at(request, text)]
    return token


def _stop_at(request, text):
    """Returns where the first stop text begins, None without one."""
    found = [text.find(stop) for stop in request.stop]
    return min((place for place in found if place >= 0), default=None)
