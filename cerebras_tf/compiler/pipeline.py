"""StepGraph -> Program: the passes, in order, each verified, and the reasons for the order."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Optional

from cerebras_tf.compiler.assemble import assemble
from cerebras_tf.compiler.fit_activations import Budget, fit_activations
from cerebras_tf.compiler.order import assign_layers, order_nodes
from cerebras_tf.compiler.sharding import ALONE, compute_norms_on_owners, deal_out
from cerebras_tf.errors import CapacityError, CerebrasError, StoreError
from cerebras_tf.ir import StepGraph, Value, verify
from cerebras_tf.ir.program import Price, Program
from cerebras_tf.ir.verify import Inferred
from cerebras_tf.ops import infer
from cerebras_tf.ops.cost import price
from cerebras_tf.passes.average_gradients import average_gradients, drop_wafer_sums
from cerebras_tf.passes.copy_old_values import copy_old_values
from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.fuse_attention import fuse_attention
from cerebras_tf.passes.fuse_elementwise import fuse_elementwise
from cerebras_tf.passes.fuse_layer_norm import fuse_layer_norm
from cerebras_tf.passes.fuse_linear_loss import fuse_linear_loss, merge_linear_loss
from cerebras_tf.passes.fuse_sums import fold_row_sums, fuse_sum_of_squares
from cerebras_tf.passes.inline_regions import inline_regions
from cerebras_tf.passes.lower_products import check_kept, lower_products
from cerebras_tf.passes.mask_weights import mask_weights
from cerebras_tf.passes.merge_common import merge_common
from cerebras_tf.passes.recompute_elementwise import recompute_elementwise
from cerebras_tf.passes.remove_padding import remove_padding
from cerebras_tf.passes.round_operands import round_operands
from cerebras_tf.passes.simplify import simplify
from cerebras_tf.passes.sink_views import sink_views
from cerebras_tf.passes.split_norms import split_norms
from cerebras_tf.passes.widen_precision import widen_precision

PRECISIONS = ("float32", "bfloat16", "emulate")


@dataclass(frozen=True)
class Options:
    """How to compile.

    Attributes:
        streaming: weights come and go layer by layer (weight-streaming mode); else all stay
            (pipelined mode).
        precision: one of PRECISIONS. "float32" computes float16 and bfloat16 in float32, too;
            "bfloat16" besides rounds operands of matrix products to bfloat16; "emulate" rounds
            results of every op to the graph's own type, and joins no ops into larger ones.
        keep_float32: regular expressions of names of operations whose products stay float32.
        fuse: join elementwise nodes.
        strip: leave padding out where it is proved that no number changes.
        restore: results of every token may leave then, although padded places are not known.
        optional: names of results that are left out where they would keep padding in.
        staging: gradients that wait for something global rest in the store meanwhile.
        price: what instructions cost, scratch memory of a backend's kernels included.
        budget: memory that activations must fit in, by making some of them again or, with staging,
            letting them rest in the store; None: no limit.
        unfitted: told of the program as it is without that limit.
        wafers: how many train together; gradients are averaged over them.
        sparse: names of variables whose pruned entries stay zero.
    """

    streaming: bool = True
    precision: str = "float32"
    keep_float32: tuple[str, ...] = ()
    fuse: bool = True
    strip: bool = False
    restore: bool = False
    optional: frozenset[str] = frozenset()
    staging: bool = False
    price: Price = price
    budget: Optional[Budget] = None
    unfitted: Optional[Callable[[Program], None]] = None
    wafers: int = 1
    sparse: tuple[str, ...] = ()


Pass = tuple[str, Callable[[StepGraph], None]]


_PATTERNS: list[Pass] = [
    ("fuse_layer_norm", lambda s: fuse_layer_norm(s.graph)),
    ("fuse_attention", lambda s: fuse_attention(s.graph, set(s.variables.values()))),
    ("fuse_linear_loss", lambda s: fuse_linear_loss(s.graph)),
]
# Behind differentiation, which makes their patterns, or has no rule for their ops.
_WITHOUT_GRADIENTS: list[Pass] = [
    ("fuse_sum_of_squares", lambda s: fuse_sum_of_squares(s.graph)),
    ("merge_linear_loss", lambda s: merge_linear_loss(s.graph)),
    ("fold_row_sums", lambda s: fold_row_sums(s.graph)),
]


@contextmanager
def paused_collector() -> Iterator[None]:
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


@paused_collector()
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
    emulates = options.precision == "emulate"
    forward: list[Pass] = [
        *([("drop_wafer_sums", lambda s: drop_wafer_sums(s.graph))] if options.wafers == 1 else []),
        *([("widen_precision", lambda s: widen_precision(s.graph))] if not emulates else []),
        ("simplify", lambda s: simplify(s.graph)),
        ("merge_common", lambda s: merge_common(s.graph)),
        # Patterns are found before differentiation, so that backward passes are fused too.
        *(_PATTERNS if options.fuse and not emulates else []),
        ("simplify", lambda s: simplify(s.graph)),
    ]
    if options.strip and options.fuse and not emulates:
        # Behind the fusion of attention, whose mask it reads; layers share one mask then.
        forward.append(("merge_common", lambda s: merge_common(s.graph)))
        forward.append(("remove_padding", lambda s: _strip(s, options)))
    run_passes(step, forward)
    return assign_layers(step)


def _strip(step: StepGraph, options: Options) -> None:
    step.padding_kept = remove_padding(step, options.restore, options.optional) or ""


def _backward(options: Options) -> list[Pass]:
    """The passes over a step that is cut into layers, up to its order."""
    return [
        ("differentiate", lambda s: differentiate(s.graph)),
        # Behind differentiation: the gradient of `select` is not finite where the branch that is
        # not taken divides by zero; that of `cond` never looks there.
        ("inline_regions", lambda s: inline_regions(s.graph)),
        # Behind inlining, which shows how a conditional update ends.
        *([("mask_weights", lambda s: mask_weights(s, options.sparse))] if options.sparse else []),
        # Identities told values apart for differentiation only.
        ("simplify", lambda s: simplify(s.graph)),
        ("merge_common", lambda s: merge_common(s.graph)),
        *(_WITHOUT_GRADIENTS if options.fuse and options.precision != "emulate" else []),
        # Behind fusion of the loss, whose products are lowered as one.
        *(
            [("lower_products", lambda s: lower_products(s.graph, options.keep_float32))]
            if options.precision == "bfloat16"
            else []
        ),
        # Behind every pass that joins equal nodes, which it makes; and behind inlining, which shows
        # what an update under a condition reads.
        ("split_norms", lambda s: split_norms(s.graph, list(s.updates.values()))),
        # Behind every pass that removes identities.
        ("copy_old_values", copy_old_values),
        # Behind every pass that joins equal nodes.
        *(
            [("average_gradients", lambda s: average_gradients(s, options.wafers))]
            if options.wafers > 1
            else []
        ),
    ]


@paused_collector()
def compile_layers(step: StepGraph, layers: int, options: Options = Options()) -> Program:
    """Differentiates, fuses, schedules and places a step that is cut into layers.

    Args:
        step: what cut_into_layers left; consumed.
        layers: what it returned.
        options: how to compile.

    Raises:
        GraphError: a pass broke an invariant; the message names the passes that ran.
        UnsupportedOpError: an op between weights and loss has no gradient rule.
        ConfigError: training, and a pattern of keep_float32 names no product.
    """
    run_passes(step, _backward(options))
    if step.updates:  # a head of training need not be there otherwise
        check_kept(step.graph, options.keep_float32)
    order_nodes(step, layers)
    if options.fuse:
        groups: list[Pass] = [
            # Behind the order, which finds the update of a norm by the squares that both read.
            ("fuse_sum_of_squares", lambda s: fuse_sum_of_squares(s.graph, shared=True)),
            # Needs directions; before the next, which keeps what products read.
            ("round_operands", lambda s: round_operands(s.graph)),
            # Needs directions; must come before fusion, which hides single ops.
            ("recompute_elementwise", lambda s: recompute_elementwise(s.graph)),
            (
                "fuse_elementwise",
                lambda s: fuse_elementwise(s.graph, lambda n: (n.direction, n.layer)),
            ),
        ]
        run_passes(step, groups)
    if options.wafers > 1:
        run_passes(step, [("sink_views", sink_views)])
    # Fusion keeps layers and directions, and so who owns what.
    owned = deal_out(step, options.wafers) if options.wafers > 1 else ALONE
    if options.wafers > 1:
        run_passes(step, [("compute_norms_on_owners", lambda s: compute_norms_on_owners(s, owned))])
    streaming, staging = options.streaming, options.staging
    program = assemble(step, layers, streaming, options.price, staging, owned=owned)
    if options.unfitted is not None:
        options.unfitted(program)
    budget = options.budget
    if budget is None or program.arena_bytes + program.scratch_bytes <= budget.bytes:
        return program
    fitted = program
    spilled: set[Value] = set()
    # Behind fusion: copies of fused nodes give the same bits.
    again: Pass = (
        "recompute",
        lambda s: spilled.update(fit_activations(s, layers, fitted, budget, streaming)),
    )
    run_passes(step, [again])
    return assemble(step, layers, streaming, options.price, staging, spilled, owned)


def run_passes(step: StepGraph, passes: Sequence[Pass]) -> None:
    """Runs passes in order and verifies the graph after each.

    Raises:
        CerebrasError: what a pass or the check of its graph raised, with the passes that ran; of
            memory or disk, which settings decide on, as it was raised.
    """
    done: list[str] = []
    inferred: Inferred = {}
    for name, run in passes:
        try:
            run(step)
            verify(step.graph, infer, inferred)
        except (CapacityError, StoreError):
            raise
        except CerebrasError as error:
            ran = ", ".join(done) or "none"
            raise type(error)(f"pass {name} (passes before it: {ran}): {error}") from error
        done.append(name)
