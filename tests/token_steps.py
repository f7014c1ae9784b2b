"""Steps over padded sequences, built without TensorFlow, and how they are computed with and without
their padding: by the plain kernels.

Letters: B sequences, S their padded length, H width, A heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

import numpy as np

from cerebras_tf.ir import Dim, StepGraph, bind_graph, verify
from cerebras_tf.ir.graph import Value
from cerebras_tf.ops import infer
from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.runtime.packing import pack_batch, real_tokens
from tests.graphs import run_plain
from tests.steps import StepBuilder

BATCH, LENGTH, WIDTH, HEADS, VOCABULARY = 4, 9, 8, 2, 13
LENGTHS = np.array([3, 9, 1, 6])
Arrays = dict[str, np.ndarray]


class TokenStep(StepBuilder):
    """Layers of encoders and decoders, written as capture and the fusions leave them."""

    def __init__(self, batch: object = BATCH, length: object = LENGTH) -> None:
        super().__init__()
        self.batch, self.length = batch, length
        self.names: list[str] = []
        self.layers = 0
        self._biases: dict[tuple[Value, float], Value] = {}

    def trained(self, name: str, *shape: int) -> Value:
        """A variable that is differentiated by."""
        self.names.append(name)
        return self.variable(name, *shape)

    def tokens(self, name: str = "ids", dtype: str = "int32") -> Value:
        """A feature [B, S]."""
        return self.feature(name, self.batch, self.length, dtype=dtype)

    def embed(self, ids: Value, folder: str = "in") -> Value:
        """Embeddings of tokens and of positions [B, S, H]."""
        table = self.trained(f"{folder}/words", VOCABULARY, WIDTH)
        x = self.b.op("gather", table, ids, axis=0, batch_dims=0)
        return self.b.op("add", x, self.trained(f"{folder}/positions", LENGTH, WIDTH))

    def dense(self, x: Value, width: int = WIDTH) -> Value:
        """x w + b over flattened tokens, [B, S, width]."""
        self.layers += 1
        flat = self.b.op("reshape", x, shape=(self.batch * self.length, x.shape[-1]))
        w = self.trained(f"dense_{self.layers}/kernel", x.shape[-1], width)
        y = self.b.op("add", self.matmul(flat, w), self.trained(f"dense_{self.layers}/bias", width))
        return self.b.op("reshape", y, shape=(self.batch, self.length, width))

    def mask_bias(self, mask: Value, hidden: float = -1e4) -> Value:
        """The bias [B, 1, 1, S] of a mask that is 1 where there is padding."""
        b = self.b
        if (mask, hidden) in self._biases:
            return self._biases[mask, hidden]
        wide = b.op(
            "reshape", b.op("cast", mask, dtype="float32"), shape=(self.batch, 1, 1, self.length)
        )
        self._biases[mask, hidden] = b.op("mul", wide, hidden)
        return self._biases[mask, hidden]

    def attend(
        self, x: Value, bias: Optional[Value] = None, keys: Optional[Value] = None, **attrs: object
    ) -> Value:
        """x + attention of x to keys, or to itself; with seed=, dropout of the weights."""
        b, seed = self.b, attrs.pop("seed", None)
        heads = (self.batch, self.length, HEADS, WIDTH // HEADS)
        source = x if keys is None else keys
        q, k, v = (b.op("reshape", self.dense(y), shape=heads) for y in (x, source, source))
        drawn = []
        if seed is not None:
            attrs.update(rate=0.25, kept_scale=1 / 0.75)
            step = self.step.features.get("step") or self.feature("step", dtype="int64")
            drawn = [step, np.array([seed, 2])]
        attrs = {"scale": 0.5, "causal": False, **attrs}
        others = [*([bias] if bias is not None else []), *drawn]
        out, _ = b.multi("attention", q, k, v, *others, **attrs)
        flat = b.op("reshape", out, shape=(self.batch, self.length, WIDTH))
        return b.op("add", x, self.dense(flat))

    def feed(self, x: Value) -> Value:
        """norm(x + tanh(x w1) w2)"""
        inner = self.b.op("tanh", self.dense(x, 2 * WIDTH))
        self.layers += 1
        scales = [self.trained(f"norm_{self.layers}/{part}", WIDTH) for part in ("gamma", "beta")]
        y = self.b.op("add", x, self.dense(inner))
        return self.b.multi("layer_norm", y, *scales, epsilon=1e-5)[0]

    def first(self, x: Value) -> Value:
        """[B, H] of the first token."""
        sizes = (self.batch, 1, WIDTH)
        row = self.b.op("slice", x, starts=(0, 0, 0), sizes=sizes, strides=(1, 1, 1))
        return self.b.op("reshape", row, shape=(self.batch, WIDTH))

    def total(self, x: Value) -> Value:
        """The sum of all elements."""
        axes = tuple(range(x.type.rank))
        return self.b.op("sum", x, axes=axes, keepdims=False) if axes else x

    def token_losses(self, x: Value, labels: Value) -> Value:
        """Cross-entropy of every token [B, S]."""
        flat = self.b.op("reshape", x, shape=(self.batch * self.length, WIDTH))
        ids = self.b.op("reshape", labels, shape=(self.batch * self.length,))
        kernel = self.trained("out/kernel", WIDTH, VOCABULARY)
        loss = self.b.multi("linear_softmax_xent", flat, kernel, ids, transpose_weight=False)[0]
        return self.b.op("reshape", loss, shape=(self.batch, self.length))

    def learn(self, loss: Value, **results: Value) -> StepGraph:
        """The step whose results are the loss, its gradients, and others."""
        if self.names:
            found = self.gradients(loss, self.names)
            for name, gradient in zip(self.names, found):
                results[f"d {name}"] = gradient
        return self.done(loss=loss, **results)


def arrays_of(step: StepGraph, lengths: np.ndarray = LENGTHS, garbage: int = 0) -> Arrays:
    """Features and variables of a step by name; what stands at padded places is garbage.

    Features called mask are 1 at padded places, those called weights 0; others hold ids there that
    differ with `garbage`.
    """
    random, other = np.random.default_rng(5), np.random.default_rng(100 + garbage)
    made: Arrays = {}
    padded = np.arange(LENGTH) >= lengths[:, None]
    for name, value in step.features.items():
        shape = tuple(
            dim if isinstance(dim, int) else {"B": BATCH, "S": LENGTH}[str(dim).partition("<")[0]]
            for dim in value.shape
        )
        kind = value.type.numpy_dtype
        if name == "step":
            made[name] = np.array(7)
        elif name == "mask" or name.startswith("mask"):
            made[name] = padded.astype(kind)
        elif name.startswith("weights"):
            made[name] = (random.uniform(0.5, 1, shape) * ~padded).astype(kind)
        elif kind.kind == "f":
            made[name] = random.standard_normal(shape).astype(kind)
        else:
            made[name] = random.integers(0, VOCABULARY, shape).astype(kind)
            if shape == padded.shape:
                made[name][padded] = other.integers(0, VOCABULARY, int(padded.sum()))
    for name, value in step.variables.items():
        made[name] = (0.4 * random.standard_normal(value.shape)).astype("f")
    return made


def computed(step: StepGraph, arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Results of a step, by the plain kernels; without padding where it is to be left out."""
    differentiate(step.graph)
    verify(step.graph, infer)
    given, sizes = dict(arrays), {}
    for name, value in step.features.items():
        if name in arrays:
            for dim, size in zip(value.shape, arrays[name].shape):
                if isinstance(dim, Dim):
                    sizes[str(dim).partition("<")[0]] = size
    if step.packing is not None:
        derived = pack_batch(step.packing, arrays, sizes)
        sizes.update(real_tokens(step.packing, derived))
        given.update(derived)
    graph = bind_graph(step.graph, sizes)
    results = run_plain(graph, [given[value.name] for value in graph.inputs])
    return {name: results[at] for (_, name), at in step.labels.items()}
