"""StepGraph -> Program: the passes in order, each verified, and the reasons for the order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from cerebras_tf.collector import paused_collector
from cerebras_tf.compiler.assemble import assemble
from cerebras_tf.compiler.fit_activations import Budget, fit_activations
from cerebras_tf.compiler.order import assign_layers, order_nodes
from cerebras_tf.compiler.sharding import ALONE, Ownership, compute_norms_on_owners, shard_updates
from cerebras_tf.errors import CapacityError, CerebrasError, StoreError
from cerebras_tf.ir import StepGraph, Value, verify
from cerebras_tf.ir.program import Price, Program
from cerebras_tf.ir.verify import Inferred
from cerebras_tf.ops import infer
from cerebras_tf.ops.cost import price
from cerebras_tf.passes.average_gradients import average_gradients, drop_wafer_sums
from cerebras_tf.passes.convert_at_use import convert_at_use
from cerebras_tf.passes.copy_old_values import copy_old_values
from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.fuse_attention import fuse_attention, group_heads
from cerebras_tf.passes.fuse_elementwise import fuse_elementwise
from cerebras_tf.passes.fuse_layer_norm import fuse_layer_norm
from cerebras_tf.passes.fuse_linear_loss import (
    drop_weight_gradients,
    fuse_linear_loss,
    merge_linear_loss,
)
from cerebras_tf.passes.fuse_rms_norm import add_in_gradient, fuse_rms_norm
from cerebras_tf.passes.fuse_rotary import fuse_rotary
from cerebras_tf.passes.fuse_sums import fold_row_sums, fuse_sum_of_squares
from cerebras_tf.passes.group_products import group_products
from cerebras_tf.passes.hoist_loops import hoist_loops
from cerebras_tf.passes.inline_regions import inline_regions
from cerebras_tf.passes.localize_views import localize_views
from cerebras_tf.passes.lower_products import check_kept, lower_products
from cerebras_tf.passes.mask_weights import mask_weights
from cerebras_tf.passes.merge_common import merge_common
from cerebras_tf.passes.recompute_elementwise import recompute_elementwise
from cerebras_tf.passes.remove_padding import remove_padding
from cerebras_tf.passes.round_operands import round_operands
from cerebras_tf.passes.simplify import simplify
from cerebras_tf.passes.sink_views import sink_views
from cerebras_tf.passes.skip_missing_labels import skip_missing_labels
from cerebras_tf.passes.split_norms import split_norms
from cerebras_tf.passes.widen_precision import widen_precision

PRECISIONS = ("float32", "bfloat16", "emulate")


@dataclass(frozen=True)
class Options:
    """How to compile.

    Attributes:
        streaming: weight streaming mode; else pipelined mode.
        precision: one of PRECISIONS. "float32" computes float16 and bfloat16 in float32;
            "bfloat16" also rounds operands of matrix products to bfloat16; "emulate" rounds
            results of every op to the graph's own type, and does not fuse ops.
        attention: with "bfloat16", whether it applies to products of attention, too.
        keep_float32: regular expressions of names of operations whose products stay float32.
        strip: remove padding if it is proved that no number changes.
        restore: with strip, results of every token may be returned although their values at padded
            positions are unknown.
        optional: names of results that are dropped if they would prevent padding removal.
        staging: spill gradients that wait for a norm of all gradients to the store.
        price: cost of instructions, including scratch memory of a backend's kernels.
        budget: memory that activations must fit in, by recomputation or, with staging, spilling;
            None: no limit.
        unfitted: is called with the program without that limit.
        wafers: number of wafers; gradients are averaged over them.
        owners: for a step without updates on several wafers: the rank that stores each variable.
        sparse: names of variables whose pruned entries stay zero.
        merge_loss: compute a loss fused with its product together with its gradient.
    """

    streaming: bool = True
    precision: str = "float32"
    attention: bool = True
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
    owners: Optional[Mapping[str, int]] = None
    sparse: tuple[str, ...] = ()
    merge_loss: bool = True


Pass = tuple[str, Callable[[StepGraph], None]]


_PATTERNS: list[Pass] = [
    ("fuse_layer_norm", lambda s: fuse_layer_norm(s.graph)),
    ("fuse_rms_norm", lambda s: fuse_rms_norm(s.graph)),
    ("fuse_rotary", lambda s: fuse_rotary(s.graph)),
    ("fuse_attention", lambda s: fuse_attention(s.graph, set(s.variables.values()))),
    ("group_heads", lambda s: group_heads(s.graph)),
    ("fuse_linear_loss", lambda s: fuse_linear_loss(s.graph)),
]

_HOIST: Pass = ("hoist_loops", lambda s: hoist_loops(s.graph))


def _without_gradients(options: Options) -> list[Pass]:
    """Passes after differentiation, which creates their patterns, or has no rule for their ops."""
    merge = ("merge_linear_loss", lambda s: merge_linear_loss(s.graph))
    return [
        ("fuse_sum_of_squares", lambda s: fuse_sum_of_squares(s.graph)),
        ("add_in_gradient", lambda s: add_in_gradient(s.graph)),
        ("drop_weight_gradients", lambda s: drop_weight_gradients(s.graph)),
        *([merge] if options.merge_loss else []),
        ("fold_row_sums", lambda s: fold_row_sums(s.graph)),
    ]


def compile_step(step: StepGraph, options: Options = Options()) -> Program:
    """Compiles a step: cut_into_layers, then compile_layers. The step's graph is consumed."""
    layers = cut_into_layers(step, options)
    return compile_layers(step, layers, options)


@paused_collector()
def cut_into_layers(step: StepGraph, options: Options = Options()) -> int:
    """Simplifies a captured step in place, fuses its patterns and cuts it into layers.

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
        *([_HOIST] if options.fuse and not emulates else []),
    ]
    if options.strip and options.fuse and not emulates:
        # After the fusion of attention, whose mask it reads; layers then share one mask.
        forward.append(("merge_common", lambda s: merge_common(s.graph)))
        forward.append(("remove_padding", lambda s: _strip(s, options)))
    # After the removal of padding, which need not see the labels through another op.
    forward.append(
        ("skip_missing_labels", lambda s: skip_missing_labels(s.graph, s.variables.values()))
    )
    run_passes(step, forward)
    return assign_layers(step)


def _strip(step: StepGraph, options: Options) -> None:
    step.padding_kept = remove_padding(step, options.restore, options.optional) or ""


def _backward(options: Options) -> list[Pass]:
    return [
        ("differentiate", lambda s: differentiate(s.graph)),
        # After differentiation: the gradient of `select` is not finite where the branch that is
        # not taken divides by zero; that of `cond` is.
        ("inline_regions", lambda s: inline_regions(s.graph)),
        # After inlining, which exposes the new values of a conditional update.
        *([("mask_weights", lambda s: mask_weights(s, options.sparse))] if options.sparse else []),
        # Identities were kept for differentiation only.
        ("simplify", lambda s: simplify(s.graph)),
        ("merge_common", lambda s: merge_common(s.graph)),
        # Also before differentiation, which then has the products to differentiate in one piece.
        *([_HOIST] if options.fuse and options.precision != "emulate" else []),
        *(_without_gradients(options) if options.fuse and options.precision != "emulate" else []),
        # After the fusion of the loss, whose products are lowered together.
        *(
            [
                (
                    "lower_products",
                    lambda s: lower_products(s.graph, options.keep_float32, options.attention),
                )
            ]
            if options.precision == "bfloat16"
            else []
        ),
        # After lower_products, which chooses products that read bfloat16; after every pass that
        # merges equal nodes, which it creates.
        *(
            [("convert_at_use", lambda s: convert_at_use(s.graph))]
            if options.precision != "emulate"
            else []
        ),
        # After every pass that merges equal nodes, which it creates; and after inlining, which
        # exposes what a conditional update reads.
        ("split_norms", lambda s: split_norms(s.graph, list(s.updates.values()))),
        # After every pass that removes identities.
        ("copy_old_values", copy_old_values),
        # After every pass that merges equal nodes.
        *(
            [("average_gradients", lambda s: average_gradients(s, options.wafers))]
            if options.wafers > 1
            else []
        ),
    ]


@paused_collector()
def compile_layers(step: StepGraph, layers: int, options: Options = Options()) -> Program:
    """Differentiates, fuses, schedules and assembles a step that is cut into layers; consumes it.

    Raises:
        GraphError: a pass broke an invariant; the message names the passes that ran.
        UnsupportedOpError: an op between weights and loss has no gradient rule.
        ConfigError: training, and a pattern of keep_float32 matches no product.
    """
    run_passes(step, _backward(options))
    if step.updates:  # other modes may lack the loss
        check_kept(step.graph, options.keep_float32)
    order_nodes(step, layers)
    passes: list[Pass] = []
    if options.fuse:
        passes += [
            # After the order, which finds the update of a norm by the squares that both read.
            ("fuse_sum_of_squares", lambda s: fuse_sum_of_squares(s.graph, shared=True)),
            # Needs directions; before recomputation, which keeps what products read.
            ("round_operands", lambda s: round_operands(s.graph)),
            # After the rounding of operands, which products share; before fusion, which hides sums.
            ("group_products", lambda s: group_products(s.graph)),
            # Needs directions; before fusion, which hides single ops.
            ("recompute_elementwise", lambda s: recompute_elementwise(s.graph)),
            (
                "fuse_elementwise",
                lambda s: fuse_elementwise(s.graph, lambda n: (n.direction, n.layer)),
            ),
        ]
    passes.append(("localize_views", localize_views))
    if options.wafers > 1:
        passes.append(("sink_views", sink_views))
    run_passes(step, passes)
    owned = ALONE
    if options.wafers > 1 and options.owners is not None and not step.updates:
        owned = Ownership(options.wafers, owners=dict(options.owners))
    elif options.wafers > 1:
        owned = shard_updates(step, options.wafers)
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
    # After fusion: copies of fused nodes give the same bits.
    again: Pass = (
        "recompute",
        lambda s: spilled.update(fit_activations(s, layers, fitted, budget, streaming)),
    )
    run_passes(step, [again, ("localize_views", localize_views)])
    return assemble(step, layers, streaming, options.price, staging, spilled, owned)


def run_passes(step: StepGraph, passes: Sequence[Pass]) -> None:
    """Runs passes in order and verifies the graph after each.

    Raises:
        CerebrasError: of a pass or of the verification, with the passes that ran; errors about
            memory or disk are raised unchanged.
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
