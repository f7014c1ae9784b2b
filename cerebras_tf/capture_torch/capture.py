"""Joins model, gradients and update to one step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Optional

from cerebras_tf.capture_torch.export import LOSS as LOSS
from cerebras_tf.capture_torch.export import ExportedModel
from cerebras_tf.capture_torch.lowering import Lowering
from cerebras_tf.capture_torch.update import TracedUpdate
from cerebras_tf.ir import Graph, StepGraph, TensorType
from cerebras_tf.ir.step import GRADIENT

# The result that is the gradient of a parameter.
GRADIENT_OF = "gradient/{}"


def capture_step(
    model: ExportedModel,
    update: Optional[TracedUpdate],
    types: Mapping[str, TensorType],
    results: Collection[str],
    seed: int,
    trains: bool = False,
    updates: bool = True,
) -> StepGraph:
    """Captures one step.

    Args:
        update: what follows the gradients; None for a step that trains no parameter.
        types: types of the features; sizes are numbers or symbols.
        results: LOSS, names of outputs, and of gradients, GRADIENT_OF.
        seed: of the random operations.
        trains: whether the step is a part of training, where losses are means over all wafers.
        updates: whether the step changes variables.

    Raises:
        UnsupportedOpError: operations have no IR form.
        DataError: sizes in a batch do not fit together.
    """
    step = StepGraph(Graph("step"))
    low = Lowering(step, seed, model.symbols(types))
    low.trains = trains
    outputs, changed = model.lower(low, types)
    step.results.update((name, v) for name, v in outputs.items() if name == LOSS or name in results)
    step.updates = changed if updates else {}
    names = model.trained
    if update is not None or any(GRADIENT_OF.format(name) in results for name in names):
        low.b.source = "gradient"
        variables = [step.variables[name] for name in names]
        loss = outputs[LOSS] if update is None else update.scaled(low, outputs[LOSS])
        found = low.b.multi("gradient", loss, *variables, ys=1, dys=(False,), xs=len(names))
        gradients = {
            name: low.b.op(GRADIENT, gradient, variable=name)
            for name, gradient in zip(names, found)
        }
        for name, value in gradients.items():
            if GRADIENT_OF.format(name) in results:
                step.results[GRADIENT_OF.format(name)] = value
        if update is not None:
            step.updates.update(update.lower(low, gradients))
    step.graph.inputs = [*step.features.values(), *step.variables.values()]
    step.graph.prune()
    return step
