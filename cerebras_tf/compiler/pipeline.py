"""StepGraph -> Program: the passes, in order, each verified, and the reasons for the order."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Optional

from cerebras_tf.compiler.assemble import assemble
from cerebras_tf.compiler.fit_activations import Budget, fit_activations
from cerebras_tf.compiler.layers import assign_layers
from cerebras_tf.compiler.order import order_nodes
from cerebras_tf.errors import CerebrasError
from cerebras_tf.ir import StepGraph, verify
from cerebras_tf.ir.program import Price, Program
from cerebras_tf.ir.verify import Inferred
from cerebras_tf.ops import infer
from cerebras_tf.ops.cost import price
from cerebras_tf.passes.copy_old_values import copy_old_values
from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.fuse_attention import fuse_attention
from cerebras_tf.passes.fuse_elementwise import fuse_elementwise
from cerebras_tf.passes.fuse_layer_norm import fuse_layer_norm
from cerebras_tf.passes.fuse_linear_loss import fuse_linear_loss, merge_linear_loss
from cerebras_tf.passes.fuse_sum_of_squares import fuse_sum_of_squares
from cerebras_tf.passes.inline_conditionals import inline_conditionals
from cerebras_tf.passes.merge_common import merge_common
from cerebras_tf.passes.recompute_elementwise import recompute_elementwise
from cerebras_tf.passes.simplify import simplify
from cerebras_tf.passes.widen_precision import widen_precision


@dataclass(frozen=True)
class Options:
    """How to compile.

    Attributes:
        streaming: weights come and go layer by layer (weight-streaming mode); else all stay
            (pipelined mode).
        widen: compute float16 and bfloat16 in float32.
        fuse: join elementwise nodes.
        staging: gradients that wait for something global rest in the store meanwhile.
        price: what instructions cost, scratch memory of a backend's kernels included.
        budget: memory that activations must fit in, by making some of them again; None: no limit.
    """

    streaming: bool = True
    widen: bool = True
    fuse: bool = True
    staging: bool = False
    price: Price = price
    budget: Optional[Budget] = None


Pass = tuple[str, Callable[[StepGraph], None]]


_PATTERNS: list[Pass] = [
    ("fuse_layer_norm", lambda s: fuse_layer_norm(s.graph)),
    ("fuse_attention", lambda s: fuse_attention(s.graph, set(s.variables.values()))),
    ("fuse_linear_loss", lambda s: fuse_linear_loss(s.graph)),
]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Holds Python's cyclic garbage collector back.

    Passes make hundreds of thousands of objects that stay. Each of the collector's walks goes over
    all of them, and over the TensorFlow graph they came from: half of the time of compiling.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def compile_step(step: StepGraph, options: Options = Options()) -> Program:
    """Compiles a step: cut_into_layers, then compile_layers. The step's graph is consumed."""
    layers = cut_into_layers(step, options)
    return compile_layers(step, layers, options)


@_collector_paused()
def cut_into_layers(step: StepGraph, options: Options = Options()) -> int:
    """Simplifies the forward graph, finds its patterns and cuts it into layers.

    Args:
        step: what capture made; changed in place.
        options: how to compile.

    Returns:
        Number of layers.

    Raises:
        GraphError: a pass broke an invariant; the message names the passes that ran.
    """
    forward: list[Pass] = [
        *([("widen_precision", lambda s: widen_precision(s.graph))] if options.widen else []),
        ("simplify", lambda s: simplify(s.graph)),
        ("merge_common", lambda s: merge_common(s.graph)),
        # Patterns are found before differentiation, so that backward passes are fused too.
        *(_PATTERNS if options.fuse else []),
        ("simplify", lambda s: simplify(s.graph)),
    ]
    run_passes(step, forward)
    return assign_layers(step)


@_collector_paused()
def compile_layers(
    step: StepGraph,
    layers: int,
    options: Options = Options(),
) -> Program:
    """Differentiates, fuses, schedules and places a step that is cut into layers.

    Args:
        step: what cut_into_layers left; consumed.
        layers: what it returned.
        options: how to compile.

    Raises:
        GraphError: a pass broke an invariant; the message names the passes that ran.
        UnsupportedOpError: an op between weights and loss has no gradient rule.
    """
    backward: list[Pass] = [
        ("differentiate", lambda s: differentiate(s.graph)),
        # Behind differentiation: the gradient of `select` is not finite where the branch that is
        # not taken divides by zero; that of `cond` never looks there.
        ("inline_conditionals", lambda s: inline_conditionals(s.graph)),
        # Identities told values apart for differentiation only.
        ("simplify", lambda s: simplify(s.graph)),
        ("merge_common", lambda s: merge_common(s.graph)),
        # Behind differentiation: the fused op has no gradient rule.
        *(
            [("fuse_sum_of_squares", lambda s: fuse_sum_of_squares(s.graph))]
            if options.fuse
            else []
        ),
        *([("merge_linear_loss", lambda s: merge_linear_loss(s.graph))] if options.fuse else []),
        # Behind every pass that removes identities.
        ("copy_old_values", copy_old_values),
    ]
    run_passes(step, backward)
    order_nodes(step, layers)
    if options.fuse:
        groups: list[Pass] = [
            # Needs directions; must come before fusion, which hides single ops.
            ("recompute_elementwise", lambda s: recompute_elementwise(s.graph)),
            (
                "fuse_elementwise",
                lambda s: fuse_elementwise(s.graph, lambda n: (n.direction, n.layer)),
            ),
        ]
        run_passes(step, groups)
    streaming, staging = options.streaming, options.staging
    program = assemble(step, layers, streaming, options.price, staging)
    budget = options.budget
    if budget is None or program.arena_bytes + program.scratch_bytes <= budget.bytes:
        return program
    fitted = program
    # Behind fusion: copies of fused nodes give the same bits.
    again: Pass = ("recompute", lambda s: fit_activations(s, layers, fitted, budget))
    run_passes(step, [again])
    return assemble(step, layers, streaming, options.price, staging)


def run_passes(step: StepGraph, passes: Sequence[Pass]) -> None:
    """Runs passes in order and verifies the graph after each."""
    done: list[str] = []
    inferred: Inferred = {}
    for name, run in passes:
        try:
            run(step)
            verify(step.graph, infer, inferred)
        except CerebrasError as error:
            ran = ", ".join(done) or "none"
            raise type(error)(f"pass {name} (passes before it: {ran}): {error}") from error
        done.append(name)
