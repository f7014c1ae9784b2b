"""A trained language model that scores and completes texts.

Only one session is open at a time: scoring closes the one of completions, and vice versa.
"""

from modelzoo.common.evaluate.scoring import Scorer, split_tokens
from modelzoo.common.generate.cached_decoder import CachedDecoder, decoder_signature
from modelzoo.common.generate.generate import generate
from modelzoo.common.generate.stepper import Stepper


class ModelSession:
    """A model with its tokenizer and a checkpoint.

    Args:
        tokenizer: an object with `encode`, `decode` and `eos_id`.

    Attributes:
        limit: maximum number of tokens of the model's input.
    """

    def __init__(self, estimator, params, checkpoint_path, tokenizer, batch_size):
        model = params.model
        self.tokenizer = tokenizer
        self.limit = model.max_position_embeddings or params.train_input.max_sequence_length
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

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def score_texts(self, pairs, **options):
        """Returns the Score of every (context, continuation) of texts, see `split_tokens`."""
        first = self.tokenizer.eos_id
        tokens = [
            split_tokens(self.tokenizer, context, continuation, first)
            for context, continuation in pairs
        ]
        return self.score(tokens, **options)

    def score(self, pairs, **options):
        """Returns the Score of every (context, continuation) of tokens, see Scorer.score."""
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
