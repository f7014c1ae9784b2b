"""Scores and completes texts with a language model of transformers, for tasks without training.

B batch, S sequence length.
"""

import collections
import functools

import numpy as np
import torch
import transformers

from modelzoo.common.data.prompts import REFERENCE
from modelzoo.common.evaluate.scoring import Scorer, TextSession
from modelzoo.common.evaluate.tasks import evaluate, write_results
from modelzoo.common.generate import prediction
from modelzoo.common.generate.generate import generate
from modelzoo.common.generate.transformers_decoder import CACHE
from modelzoo.common.train import predictions, torch_engine
from modelzoo.common.train.console import counted, logger
from modelzoo.hugging_face.generation import find_tokenizer, model_to_generate
from modelzoo.hugging_face.model import LoadedModel


class Texts:
    """A tokenizer of transformers, as sessions use one: no special tokens are added."""

    def __init__(self, tokenizer):
        self._tokenizer, self.eos_id = tokenizer, tokenizer.eos_token_id

    def encode(self, text):
        """Returns the tokens of a text, [n] int32."""
        return np.array(self._tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)

    def decode(self, ids):
        """Returns the text of tokens."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)


class TorchSession(TextSession):
    """A TextSession of a checkpoint, or of `model.pretrained`.

    Args:
        params: CausalLmParams.
    """

    def __init__(self, params, batch_size):
        self._params, self._batch_size = params, batch_size
        self.checkpoint = torch_engine.chosen(params)
        config = LoadedModel(params, meta=True).module.config.get_text_config()
        limit = getattr(config, "max_position_embeddings", None)
        tokenizer = find_tokenizer(params)
        longest = limit or params.train_input.max_sequence_length
        super().__init__(Texts(tokenizer), longest, getattr(tokenizer, "bos_token_id", None))
        self._run = self._training = None

    def score(self, pairs, **options):
        return Scorer(self._step, self._batch_size, self.limit).score(pairs, **options)

    def _step(self, input_ids, targets):
        columns = {"input_ids": input_ids, "targets": targets}
        batch = {name: torch.from_numpy(array.astype(np.int64)) for name, array in columns.items()}
        if self._run is None:
            model = LoadedModel(self._params)
            if self._params.runconfig.device:
                model.load(self.checkpoint)
                model.module.eval().requires_grad_(False)
                self._run = functools.partial(_eager, model.module)
            else:
                weights = model.weights(self.checkpoint)
                given = self._params, model.module, batch, outputs, weights
                self._training = torch_engine.evaluation_of(*given)
                self._run = self._training.step
        return self._run(batch)

    def complete(self, requests):
        """Yields each Request once it has ended, see generate.generate."""
        with model_to_generate(self._params, self.checkpoint) as module:
            yield from generate(Decoder(module), requests, self.tokenizer, 1, self.limit)

    def close(self):
        if self._training is not None:
            self._training.close()
        self._run = self._training = None


class Decoder:
    """Decodes one row token by token, with the cache of transformers; see CachedDecoder."""

    def __init__(self, module):
        self._module, self._cache = module, None

    def start(self, prompts):
        """Runs the model on a prompt with an empty cache; returns logits [1, V]."""
        self._cache = transformers.DynamicCache()
        return self._run(prompts[0])

    def append(self, tokens, active=None):
        """Runs the model on one more token; returns logits [1, V]."""
        return self._run(tokens)

    def _run(self, tokens):
        ids = torch.from_numpy(np.asarray(tokens, np.int64))[None]
        with torch.no_grad():
            found = self._module(ids, **{CACHE: self._cache}, use_cache=True)
        return found.logits[:, -1].float().numpy()


def _eager(module, batch):
    return {name: tensor.numpy() for name, tensor in outputs(module, batch).items()}


def outputs(module, batch):
    """The log-probabilities of the targets, and the likeliest tokens, [B, S]."""
    logits, targets = module(batch["input_ids"], use_cache=False).logits.float(), batch["targets"]
    log_probs = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    return {"log_probs": log_probs, "choices": logits.argmax(-1)}


def predict(params):
    """Completes the prompts of ``predict_input``; see modelzoo.common.generate.prediction."""
    section = params.predict_input
    with TorchSession(params, 1) as session:
        limit = section.max_sequence_length or session.limit
        prompts = prediction.select_prompts(params, session.tokenizer, limit)
        requests = prediction.make_requests(prompts, section)
        prediction.warn_truncated(prompts, section.max_new_tokens, limit)
        name = f"completions_{'pt' if params.runconfig.device else 'cs'}_0"
        rows = (prediction.as_row(each, *each.key) for each in session.complete(requests))
        if not torch_engine.is_first():  # takes part in the steps
            collections.deque(rows, maxlen=0)
            return
        path = prediction.write_completions(rows, predictions.predict_folder(params), name)
        logger().info("wrote %s to %s", counted(len(requests), "completion"), path)
        scored = all(REFERENCE in request.key[2].others for request in requests)
        step = torch_engine.step_of(session.checkpoint) if session.checkpoint else 0
        found = prediction.score(requests) if scored else {}
        predictions.write_scores_of_step(f"{params.runconfig.model_dir}/eval", step, found)


def run(args, params, tasks):
    """Evaluates tasks on the console; see commands/zero_shot.py."""
    folder = f"{params.runconfig.model_dir}/zero_shot"
    with TorchSession(params, args.batch_size) as session:
        for name, rows in tasks.items():
            total = sum(len(row.texts()) for row in rows)
            with torch_engine.progress_bar(total, "text", text=name) as bar:
                results, scores = evaluate(session, rows, bar.update)
            step = torch_engine.step_of(session.checkpoint) if session.checkpoint else 0
            yield name, len(rows), scores, write_results(folder, name, step, results, scores)[0]
