"""Log-likelihoods of continuations under a language model, and sessions that score and complete.

Shapes: B rows of a batch, S tokens.
"""

from dataclasses import dataclass

import numpy as np

from cerebras_tf.errors import DataError
from modelzoo.common.generate.cached_decoder import CachedDecoder, decoder_signature
from modelzoo.common.generate.generate import generate

SIZES = 16  # number of lengths that batches are padded to; the model is compiled for each


@dataclass(frozen=True)
class Score:
    """The log-likelihood of a continuation.

    Attributes:
        log_prob: sum of the log-probabilities of its tokens, in nats.
        is_greedy: whether each token is the likeliest one at its position.
    """

    log_prob: float
    is_greedy: bool
    num_tokens: int


class Scorer:
    """Scores continuations in batches of similar length.

    Args:
        step: Stepper, or a function like it, that gives ``log_probs`` and ``choices`` [B, S] for
            ``input_ids`` and ``targets``, see ``decoding_spec``.
    """

    def __init__(self, step, batch_size, limit):
        self._step = step
        self._batch_size = batch_size
        self._limit = limit

    def score(self, pairs, report=lambda count: None, places=()):
        """Scores continuations.

        Args:
            pairs: list of (context, continuation), sequences of tokens, neither empty. A context
                that is too long for the model is truncated on the left.
            report: called after every batch with its number of pairs.

        Returns:
            A list of Score, in the same order.
        """
        for number, (context, continuation) in enumerate(pairs):
            if not len(context) or not 0 < len(continuation) <= self._limit:
                where = places[number] if places else f"continuation {number}"
                raise DataError(
                    f"{where}: the scored text must have 1 to {self._limit} tokens, after at least "
                    f"one token of context. Received: {len(continuation)} after {len(context)}. "
                    "Split or remove it."
                )
        scores = [None] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda number: -self._length(pairs[number]))
        rows = min(self._batch_size, max(len(order), 1))
        for start in range(0, len(order), rows):
            numbers = order[start : start + rows]
            for number, score in zip(numbers, self._batch([pairs[n] for n in numbers], rows)):
                scores[number] = score
            report(len(numbers))
        return scores

    def _length(self, pair):
        """Returns the number of input tokens of a pair. The last token is only a target."""
        return min(len(pair[0]) + len(pair[1]) - 1, self._limit)

    def _batch(self, pairs, rows):
        unit = max(SIZES, -(-self._limit // SIZES))
        length = min(-(-max(map(self._length, pairs)) // unit) * unit, self._limit)
        ids = np.zeros([rows, length], np.int32)
        targets = np.zeros_like(ids)
        for row, (context, continuation) in enumerate(pairs):
            tokens = np.concatenate([context, continuation])[-(self._limit + 1) :]
            ids[row, : len(tokens) - 1] = tokens[:-1]
            targets[row, : len(tokens) - 1] = tokens[1:]
        outputs = self._step(input_ids=ids, targets=targets)
        for row, pair in enumerate(pairs):
            end = self._length(pair)
            part = slice(end - len(pair[1]), end)
            yield Score(
                float(outputs["log_probs"][row, part].astype(np.float64).sum()),
                bool((outputs["choices"][row, part] == targets[row, part]).all()),
                len(pair[1]),
            )


def split_tokens(tokenizer, context, continuation, first_token):
    """Tokenizes context and continuation together, as lm-evaluation-harness does.

    Spaces at the end of the context are moved to the continuation, because a token of a word begins
    with its space. The continuation's tokens are those of both texts, without as many as the
    context has by itself. If that leaves none, because a token spans both texts, the continuation
    is tokenized by itself.

    Args:
        tokenizer: an object with `encode`.
        context: text; may be empty.
        continuation: text of at least one token.

    Returns:
        Tokens of the context and of the continuation.
    """
    stripped = context.rstrip()
    continuation = context[len(stripped) :] + continuation
    if not stripped:
        return np.array([first_token], np.int32), tokenizer.encode(continuation)
    tokens = tokenizer.encode(stripped)
    rest = tokenizer.encode(stripped + continuation)[len(tokens) :]
    return tokens, rest if len(rest) else tokenizer.encode(continuation)


class TextSession:
    """A model with its tokenizer. Use it as a context.

    Args:
        tokenizer: an object with `encode`, `decode` and `eos_id`.

    Attributes:
        limit: maximum number of tokens of the model's input.
        first_token: what a text without context follows.
    """

    def __init__(self, tokenizer, limit, first_token=None):
        self.tokenizer, self.limit = tokenizer, limit
        self.first_token = tokenizer.eos_id if first_token is None else first_token

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the session, if one is open."""

    def score(self, pairs, **options):
        """Returns the Score of every (context, continuation) of tokens, see Scorer.score."""
        raise NotImplementedError

    def score_texts(self, pairs, **options):
        """Returns the Score of every (context, continuation) of texts, see `split_tokens`."""
        tokens = [
            split_tokens(self.tokenizer, context, continuation, self.first_token)
            for context, continuation in pairs
        ]
        return self.score(tokens, **options)


class ModelSession(TextSession):
    """A TextSession of an estimator's checkpoint."""

    def __init__(self, estimator, params, checkpoint_path, tokenizer, batch_size):
        from modelzoo.common.generate.stepper import Stepper

        model = params.model
        limit = model.max_position_embeddings or params.train_input.max_sequence_length
        super().__init__(tokenizer, limit)
        self._make_step = lambda signature: Stepper(
            estimator, checkpoint_path, not params.runconfig.device, signature
        )
        self._shape = (
            model.num_hidden_layers,
            model.num_heads,
            model.hidden_size // model.num_heads,
        )
        self._batch_size = batch_size
        self._kind = None
        self._step = None

    def score(self, pairs, **options):
        import tensorflow.compat.v1 as tf

        matrix = tf.TensorSpec([None, None], tf.int32)
        step = self._open("score", {"input_ids": matrix, "targets": matrix})
        return Scorer(step, self._batch_size, self.limit).score(pairs, **options)

    def complete(self, requests):
        """Yields each Request once it has ended, see `generate`."""
        step = self._open("complete", decoder_signature(*self._shape))
        decoder = CachedDecoder(step, *self._shape, limit=self.limit)
        rows = min(self._batch_size, max(len(requests), 1))
        yield from generate(decoder, requests, self.tokenizer, rows, self.limit)

    def close(self):
        """Ends the session, if one is open."""
        if self._step is not None:
            self._step.close()
        self._kind = self._step = None

    def _open(self, kind, signature):
        if kind != self._kind:
            self.close()
            self._kind, self._step = kind, self._make_step(signature)
        return self._step
