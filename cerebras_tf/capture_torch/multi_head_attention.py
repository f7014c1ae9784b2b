"""torch's multi-head attention with the batch as first axis, as the padding pass reads it.

torch moves the batch behind the sequence before the projections, and back at the end. The results
are equal.
"""

from __future__ import annotations

import inspect
from typing import Any, Optional

import torch
import torch.nn.functional as F

_torchs_own = F.multi_head_attention_forward
_SIGNATURE = inspect.signature(_torchs_own)
# Arguments that torch's own function serves, where they are not these.
_PLAIN = {
    "bias_k": None,
    "bias_v": None,
    "add_zero_attn": False,
    "use_separate_proj_weight": False,
    "static_k": None,
    "static_v": None,
    "need_weights": False,
}


def multi_head_attention_forward(*args: Any, **keys: Any) -> tuple[torch.Tensor, Any]:
    """torch.nn.functional.multi_head_attention_forward for [L, N, E] tensors."""
    bound = _SIGNATURE.bind(*args, **keys)
    bound.apply_defaults()
    given = bound.arguments
    is_plain = all(given[name] is value for name, value in _PLAIN.items())
    if not is_plain or given["query"].dim() != 3 or given["in_proj_weight"] is None:
        found: tuple[torch.Tensor, Any] = _torchs_own(*args, **keys)
        return found
    query, key, value = _projected(given)
    rate = given["dropout_p"] if given["training"] else 0.0
    mask = _mask(given, query)
    is_causal = bool(given["is_causal"]) and given["key_padding_mask"] is None
    attended = F.scaled_dot_product_attention(
        query, key, value, None if is_causal else mask, rate, is_causal
    )
    joined = attended.transpose(1, 2).flatten(2)
    output = F.linear(joined, given["out_proj_weight"], given["out_proj_bias"])
    return output.transpose(0, 1), None


def _projected(given: Any) -> list[torch.Tensor]:
    """Query, key and value [N, H, L, E / H]."""
    query, key, value = given["query"], given["key"], given["value"]
    weight, bias, heads = given["in_proj_weight"], given["in_proj_bias"], given["num_heads"]
    if query is key and key is value:
        parts = F.linear(query.transpose(0, 1), weight, bias).chunk(3, dim=-1)
    else:
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        parts = tuple(
            F.linear(x.transpose(0, 1), w, b)
            for x, w, b in zip((query, key, value), weight.chunk(3), biases)
        )
    return [part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts]


def _mask(given: Any, query: torch.Tensor) -> Optional[torch.Tensor]:
    """The masks as a float mask [N, 1 or H, 1 or L, S] that is added to the scores."""
    padding, mask = given["key_padding_mask"], given["attn_mask"]
    if mask is not None:
        mask = _float_mask(mask, query)
        mask = mask.unflatten(0, (-1, given["num_heads"])) if mask.dim() == 3 else mask[None, None]
    if padding is None:
        return mask
    padding = _float_mask(padding, query)[:, None, None]
    return padding if mask is None else mask + padding


def _float_mask(mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """A mask, of bool where True means masked, as one that is added to the scores."""
    if mask.dtype != torch.bool:
        return mask.to(query.dtype)
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask, float("-inf"))
