"""The interface of EleutherAI's lm-eval harness for a model of the zoo.

For example, with the estimator and parameters as ``cerebras-tf zero_shot`` makes them::

    with ModelSession(estimator, params, checkpoint_path, tokenizer, batch_size) as session:
        lm_eval.simple_evaluate(model=ZooLM(session), tasks=["lambada_openai"])

The harness downloads its tasks. Importing this file needs ``lm-eval``.
"""

import numpy as np

from cerebras_tf.errors import ConfigError
from cerebras_tf.installing import pip_install
from modelzoo.common.generate.generate import Request
from modelzoo.common.generate.sampling import Sampler

try:
    from lm_eval import utils
    from lm_eval.api.model import LM
except ImportError as error:
    raise ConfigError(
        f"lm-eval: must be installed. Received: {error}. Run: {pip_install('lm-eval')}"
    ) from error

MAX_NEW_TOKENS = 256  # the default of the harness's own models


class ZooLM(LM):
    """A language model of the zoo, as the harness calls one."""

    def __init__(self, session):
        super().__init__()
        self._session = session
        self._tokenizer = session.tokenizer

    def loglikelihood(self, requests, disable_tqdm=False):
        """Returns (log-probability, whether greedy) of each (context, continuation)."""
        scores = self._session.score_texts([request.args for request in requests])
        return [(score.log_prob, score.is_greedy) for score in scores]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        """Returns the log-probability of each whole text.

        Every token is predicted once, from the tokens before it in its window of the harness.
        """
        limit = self._session.limit
        pairs, counts = [], []
        for (text,) in (request.args for request in requests):
            tokens = self._tokenizer.encode(text).tolist()
            windows = utils.get_rolling_token_windows(tokens, self._session.first_token, limit, 1)
            disjoint = [utils.make_disjoint_window(window) for window in windows]
            pairs += disjoint
            counts.append(len(disjoint))
        scores = iter(self._session.score(pairs))
        return [sum(next(scores).log_prob for _ in range(count)) for count in counts]

    def generate_until(self, requests, disable_tqdm=False):
        """Returns the completion of each context, up to the stop strings ``until``."""
        made = [self._request(number, *request.args) for number, request in enumerate(requests)]
        for _ in self._session.complete(made):
            pass  # each request holds its own result
        return [request.text for request in made]

    def _request(self, number, context, options):
        """Returns the Request of a context and the harness's generation options."""
        until = options.get("until") or ()
        do_sample = options.get("do_sample", False)
        max_new_tokens = int(options.get("max_gen_toks", MAX_NEW_TOKENS))
        max_prompt = max(self._session.limit - max_new_tokens, 1)
        tokens = self._tokenizer.encode(context)[-max_prompt:]
        return Request(
            tokens if len(tokens) else np.array([self._tokenizer.eos_id]),
            Sampler(
                float(options.get("temperature", 1.0)) if do_sample else 0.0,
                options.get("top_k"),
                float(options.get("top_p", 1.0)),
                (number,),
                float(options.get("repetition_penalty", 1.0)),
            ),
            max_new_tokens,
            (until,) if isinstance(until, str) else tuple(until),
        )
