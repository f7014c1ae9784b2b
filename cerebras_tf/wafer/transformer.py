"""Workloads of transformers and dense networks from their sizes, without a graph.

Letters: T tokens of a batch, H hidden size, F filter size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from cerebras_tf.wafer.workload import ACTIVATIONS, GRADIENT, WEIGHTS, LayerWork, Product, Workload

_SLOTS = 2  # Adam's, per parameter


def trained(
    name: str, products: Sequence[Product], vector: int, boundary: int, inner: int, others: int = 0
) -> LayerWork:
    """A layer with the backward pass of its products.

    Args:
        products: of its forward pass.
        vector: elements that everything else in the forward pass reads or writes.
        boundary: activations that the next layer reads.
        inner: other activations that the backward pass reads.
        others: parameters outside products, such as biases and embeddings.
    """
    backward: list[Product] = []
    for item in products:
        kind = GRADIENT if item.kind == WEIGHTS else ACTIVATIONS
        backward += [replace(item, inputs=item.outputs, outputs=item.inputs)]
        backward += [replace(item, kind=kind)]
    parameters = others + sum(p.inputs * p.outputs for p in products if p.kind == WEIGHTS)
    return LayerWork(
        name, parameters, tuple(products), tuple(backward), (vector, 2 * vector), boundary, inner
    )


def dense_network(name: str, sizes: Sequence[int], batch: int) -> Workload:
    """A stack of dense layers with biases."""
    layers = [
        trained(
            f"dense_{i}",
            [Product(WEIGHTS, batch, inputs, outputs)],
            2 * batch * outputs,
            batch * outputs,
            batch * outputs,
            outputs,
        )
        for i, (inputs, outputs) in enumerate(zip(sizes, sizes[1:]))
    ]
    parameters = sum(layer.parameters for layer in layers)
    return Workload(name, tuple(layers), batch, _SLOTS * parameters, batch * (2 * sizes[0] + 4))


def _attention(tokens: int, hidden: int, heads: int, keys: int) -> list[Product]:
    """Products of attention: four with weights, two of activations."""
    return [
        *(Product(WEIGHTS, tokens, hidden, hidden) for _ in range(4)),
        Product(ACTIVATIONS, tokens, hidden // heads, keys, heads),
        Product(ACTIVATIONS, tokens, keys, hidden // heads, heads),
    ]


def transformer(
    name: str,
    batch: int,
    hidden: int,
    layers: int,
    heads: int,
    filter: int,
    vocabulary: int,
    sequence: int,
    predictions: int = 0,
    mean_length: float = 1.0,
    tied: bool = True,
    positions: Optional[int] = None,
    block_others: Optional[int] = None,
    others: Optional[int] = None,
) -> Workload:
    """A stack of transformer blocks between an embedding and an output layer.

    Args:
        batch: samples per step and system.
        layers: number of blocks.
        filter: F.
        sequence: tokens per sample.
        predictions: tokens per sample whose logits are computed; 0 for all.
        mean_length: mean share of a sequence that is not padding, if padding is removed.
        tied: whether embedding and output layer share weights, which then count for the latter.
        positions: size of the trained position embedding; None: `sequence`.
        block_others: parameters of a block besides matrices; None: biases and two layer norms.
        others: parameters outside the blocks besides matrices and tables; None: a layer norm.
    """
    full, tokens = batch * sequence, round(batch * sequence * mean_length)
    keys = max(1, round(sequence * mean_length))
    wide, inside, scores = tokens * hidden, tokens * filter, tokens * heads * keys
    attention = _attention(tokens, hidden, heads, keys)
    table = hidden * ((sequence if positions is None else positions) + (not tied) * vocabulary)
    small = filter + 9 * hidden if block_others is None else block_others
    mixing = min(small, 6 * hidden)  # the rest is the feed-forward layers'
    stack = [trained("embedding", [], wide, wide, 0, table)]
    for i in range(layers):
        # Reads and writes of layer norm, softmax, residual and bias. Kept: normalised input, query,
        # key, value, attention output; normalised input and both sides of the nonlinearity.
        stack.append(
            trained(f"attention_{i}", attention, 10 * wide + 4 * scores, wide, 5 * wide, mixing)
        )
        inner = [Product(WEIGHTS, tokens, hidden, filter), Product(WEIGHTS, tokens, filter, hidden)]
        kept, rest = wide + 2 * inside, small - mixing
        stack.append(trained(f"ffn_{i}", inner, 6 * wide + 4 * inside, wide, kept, rest))
    logits = batch * predictions if predictions else tokens
    head = [Product(WEIGHTS, logits, hidden, hidden)] if predictions else []
    head.append(Product(WEIGHTS, logits, hidden, vocabulary))
    last = 2 * hidden if others is None else others
    stack.append(trained("output", head, 4 * logits * vocabulary, 0, 0, last))
    parameters = sum(layer.parameters for layer in stack)
    # Ids, mask and labels of a token in 32, 16 and 32 bits.
    return Workload(name, tuple(stack), batch, _SLOTS * parameters, 10 * full, full, 2, mean_length)
