"""Suggestions for a user, each with a prediction of its effect."""

from __future__ import annotations

from dataclasses import replace

from cerebras_tf.quantities import number, seconds
from cerebras_tf.wafer.activations import largest_batch
from cerebras_tf.wafer.pipelined import predict_pipelined, predict_replicas
from cerebras_tf.wafer.prediction import STREAMING, Prediction
from cerebras_tf.wafer.streaming import predict_streaming

# Suggestions with a smaller gain are not shown.
_MIN_GAIN = 0.02
_SYSTEM_FACTOR = 4


def suggestions(found: Prediction) -> list[str]:
    """Sentences for more samples per second, or for a model that does not fit."""
    lines = list(found.faults)
    if found.bound == "host":
        lines.append(
            f"The host's loop takes {seconds(found.host_s)} per batch, the wafer "
            f"{seconds(found.wafer_s)}: a larger batch hardly takes longer."
        )
    lines += (
        _streaming_suggestions(found) if found.mode == STREAMING else _replica_suggestions(found)
    )
    return lines


def _streaming_suggestions(found: Prediction) -> list[str]:
    lines = []
    workload, system, name = found.workload, found.system, found.release.name
    if found.activations.spilled_bytes:
        spilled = f"{found.activations.spilled_bytes / 1e9:.1f} GB of activations spill to servers."
        fits = largest_batch(workload, system)
        if fits:
            micro_batches = found.micro_batches * -(-workload.batch // fits)
            spilled += (
                f" A batch of {fits} per system fits without spilling; the same step then takes "
                f"{micro_batches} micro-batches (optimizer.grad_accum_steps: {micro_batches})."
            )
        lines.append(spilled)
    larger = _with_batch(found, 2 * workload.batch)
    gain = larger.samples_per_s / found.samples_per_s - 1
    if gain > _MIN_GAIN and not larger.faults and found.bound != "host":
        lines.append(
            f"Twice the batch ({2 * workload.batch} per system) processes {gain:.0%} more samples "
            f"per second{_spill(larger)}."
        )
    if found.bound != "host":
        many = predict_streaming(workload, system, name, found.num_csx * _SYSTEM_FACTOR)
        many = replace(many, micro_batches=found.micro_batches)
        lines.append(
            f"num_csx: {many.num_csx} processes {number(many.samples_per_s)} samples per second "
            f"with a global batch of {many.global_batch:,}: each system has its own batch, and a "
            "step takes as long. (Published: linear within 9 % up to 16 systems.)"
        )
    return lines


def _with_batch(found: Prediction, batch: int) -> Prediction:
    workload = found.workload.with_batch(batch)
    return predict_streaming(workload, found.system, found.release.name, found.num_csx)


def _spill(found: Prediction) -> str:
    size = found.activations.spilled_bytes
    return f"; {size / 1e9:.1f} GB of activations then spill" if size else ""


def _replica_suggestions(found: Prediction) -> list[str]:
    if found.replicas > 1 or not found.workload.trains or found.faults or found.bound == "host":
        return []
    many = predict_pipelined(found.workload, found.system, found.release.name, multireplica=True)
    if many.replicas == 1:
        return []
    ratio = many.samples_per_s / found.samples_per_s
    return [
        f"--multireplica and {many.replicas} times the batch: {many.replicas} replicas on the "
        f"wafer, each with its own input worker, process {ratio:.2f} times as many samples per "
        "second."
    ]


def sensitivity(found: Prediction) -> list[tuple[str, float, float]]:
    """(assumption, relative change of the step's time if it is halved, and if it is doubled)."""
    lines = []
    for quantity in found.system.quantities.values():
        if quantity.grade or quantity.name in ("rows", "columns", "most_replicas", "code_share"):
            continue
        changes = []
        for factor in (0.5, 2.0):
            changed = replace(quantity, value=quantity.value * factor)
            quantities = {**found.system.quantities, quantity.name: changed}
            system = replace(found.system, quantities=quantities)
            if found.mode == STREAMING:
                other = predict_streaming(found.workload, system, found.release.name, found.num_csx)
            else:
                other = predict_replicas(found.workload, system, found.release.name, found.replicas)
            changes.append(found.micro_batches * other.step_s / found.step_s - 1)
        lines.append((quantity.name, changes[0], changes[1]))
    return lines
