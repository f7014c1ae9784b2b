"""Lets transformers' generate() run the forward passes of a model on the wafer, with a KV cache.

B batch, A heads of keys, T tokens in the cache, N new tokens, D head width, V vocabulary.
"""

import contextlib
import dataclasses
import inspect
import types

import torch
from transformers import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from cerebras_tf.api import TorchFunction, TorchModel, TorchTraining

KEY, VALUE = "key/{}", "value/{}"
PAST_MASK = "past_mask"
_FIELDS = {field.name for field in dataclasses.fields(CausalLMOutputWithPast)}
# The argument of generate() and of models; newer releases of transformers renamed it.
CACHE = "cache" if "cache" in _FIELDS else "past_key_values"


class WaferDecoder:
    """The forward pass of a causal language model on the wafer.

    The functions are captured on first use: one for the prompt, one for tokens after it.

    Args:
        module: a model of transformers, in eval mode.
        settings: TrainingSettings.
        weights, stored: see `on_wafer`.
    """

    def __init__(self, module, settings, weights, stored):
        self._module, self._settings = module, settings
        self._weights, self._stored = weights, stored
        self._positions = "position_ids" in inspect.signature(module.wafer_forward).parameters
        self._training = self._prompt = self._next = None

    def forward(self, input_ids, attention_mask, position_ids, cache):
        """Runs a step of generation, and adds its keys and values to the cache.

        Args:
            input_ids: [B, N] int64.
            attention_mask: [B, T + N], 0 for padding.
            position_ids: [B, N]; None if the model takes none.
            cache: DynamicCache.

        Returns:
            Logits of the last token, [B, 1, V] float32.
        """
        past = cache.get_seq_length()
        batch = {"input_ids": input_ids}
        if self._positions:
            batch["position_ids"] = position_ids.expand(input_ids.shape).contiguous()
        batch["mask"] = attention_mask[:, past:].long()
        if past:
            batch[PAST_MASK] = attention_mask[:, :past].long()
            for number, layer in enumerate(cache.layers):
                batch[KEY.format(number)] = layer.keys
                batch[VALUE.format(number)] = layer.values
        found = self._function(batch, bool(past))(batch)
        for number in range(self._module.config.num_hidden_layers):
            keys, values = found[KEY.format(number)], found[VALUE.format(number)]
            if past:
                cache.layers[number].keys, cache.layers[number].values = keys, values
            else:
                cache.update(keys, values, number)
        return found["logits"]

    def close(self):
        """Frees the weights."""
        if self._training is not None:
            self._training.close()

    def _function(self, batch, has_past):
        known = self._next if has_past else self._prompt
        if known is not None:
            return known
        axes = {name: (0, 2) if "/" in name else (0, 1) for name in batch}
        with torch.enable_grad():  # generate() disables it, which export records as a branch
            given = {"loss": outputs, "stored": self._stored, "open_axes": axes}
            model = TorchModel(self._module, batch, **given)
        if self._training is None:
            self._training = TorchTraining(model, self._settings, self._weights)
        made = TorchFunction(self._training, model)
        self._next, self._prompt = (made, self._prompt) if has_past else (self._next, made)
        return made


def outputs(module, batch):
    """The logits of the last token, and keys and values of all tokens [B, A, T + N, D]."""
    mask, cache = batch["mask"], DynamicCache()
    if PAST_MASK in batch:
        mask = torch.cat([batch[PAST_MASK], mask], dim=1)
        for number in range(module.config.num_hidden_layers):
            cache.update(batch[KEY.format(number)], batch[VALUE.format(number)], number)
    given = {name: batch[name] for name in ("input_ids", "position_ids") if name in batch}
    found = module.wafer_forward(
        **given, **{CACHE: cache}, attention_mask=mask, use_cache=True, logits_to_keep=1
    )
    results = {"logits": found.logits.float()}
    for number, layer in enumerate(cache.layers):
        results[KEY.format(number)], results[VALUE.format(number)] = layer.keys, layer.values
    return results


@contextlib.contextmanager
def on_wafer(module, settings, weights=None, stored=None):
    """Within: `module.generate` runs forward passes on the wafer.

    Its cache must be a DynamicCache() without a configuration.

    Args:
        weights: where the values of variables are stored, see TorchTraining.
        stored: storage dtypes of variables, see TorchModel.
    """
    own = module.forward

    def forward(self, input_ids, attention_mask=None, position_ids=None, **others):
        cache = others[CACHE]
        past = cache.get_seq_length()
        if attention_mask is None:
            attention_mask = input_ids.new_ones(input_ids.shape[0], past + input_ids.shape[1])
        if position_ids is None:
            position_ids = (past + torch.arange(input_ids.shape[1]))[None]
        logits = decoder.forward(input_ids, attention_mask, position_ids, cache)
        return CausalLMOutputWithPast(logits=logits, **{CACHE: cache})

    module.wafer_forward = own
    decoder = WaferDecoder(module, settings, weights, stored)
    module.forward = types.MethodType(forward, module)
    try:
        yield module
    finally:
        del module.forward, module.wafer_forward
        decoder.close()
