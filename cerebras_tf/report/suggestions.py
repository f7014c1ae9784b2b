"""What a user may change, and what it would bring: every suggestion is a prediction made anew."""

from __future__ import annotations

from dataclasses import replace

from cerebras_tf.quantities import number, seconds
from cerebras_tf.wafer.activations import largest_batch
from cerebras_tf.wafer.pipelined import predict_pipelined, predict_replicas
from cerebras_tf.wafer.prediction import STREAMING, Prediction
from cerebras_tf.wafer.streaming import predict_streaming

# Changes that bring less than this share are not told.
_WORTH_TELLING = 0.02
_MORE_SYSTEMS = 4


def suggestions(found: Prediction) -> list[str]:
    """Sentences for a reader who wants more samples a second, or a model that fits."""
    told = list(found.faults)
    if found.bound == "host":
        told.append(
            f"The host's loop takes {seconds(found.host_s)} a batch, the wafer "
            f"{seconds(found.wafer_s)}: a larger batch costs next to nothing."
        )
    told += _of_streaming(found) if found.mode == STREAMING else _of_copies(found)
    return told


def _of_streaming(found: Prediction) -> list[str]:
    told = []
    workload, machine, name = found.workload, found.machine, found.release.name
    if found.activations.spilled_bytes:
        spilled = f"{found.activations.spilled_bytes / 1e9:.1f} GB of activations spill to servers."
        fits = largest_batch(workload, machine)
        if fits:
            parts = found.micro_batches * -(-workload.batch // fits)
            spilled += (
                f" A batch of {fits} a system fits without; the same step then takes {parts} "
                f"micro-batches (optimizer.grad_accum_steps: {parts})."
            )
        told.append(spilled)
    larger = _rate(found, 2 * workload.batch)
    gain = larger.samples_per_s / found.samples_per_s - 1
    if gain > _WORTH_TELLING and not larger.faults and found.bound != "host":
        told.append(
            f"Twice the batch ({2 * workload.batch} a system) makes {gain:.0%} more samples a "
            f"second{_spill(larger)}."
        )
    if found.bound != "host":
        many = predict_streaming(workload, machine, name, found.num_csx * _MORE_SYSTEMS)
        many = replace(many, micro_batches=found.micro_batches)
        told.append(
            f"num_csx: {many.num_csx} makes {number(many.samples_per_s)} samples a second with a "
            f"global batch of {many.global_batch:,}: a step takes as long, each system has a batch "
            "of its own. (Published: linear within 9 % up to 16 systems.)"
        )
    return told


def _rate(found: Prediction, batch: int) -> Prediction:
    workload = found.workload.with_batch(batch)
    return predict_streaming(workload, found.machine, found.release.name, found.num_csx)


def _spill(found: Prediction) -> str:
    size = found.activations.spilled_bytes
    return f"; {size / 1e9:.1f} GB of activations then spill" if size else ""


def _of_copies(found: Prediction) -> list[str]:
    if found.replicas > 1 or not found.workload.trains or found.faults or found.bound == "host":
        return []
    many = predict_pipelined(found.workload, found.machine, found.release.name, multireplica=True)
    if many.replicas == 1:
        return []
    ratio = many.samples_per_s / found.samples_per_s
    return [
        f"--multireplica and {many.replicas} times the batch: {many.replicas} copies on the wafer, "
        f"each with an input worker of its own, make {ratio:.2f} times "
        "as many samples a second."
    ]


def sensitivity(found: Prediction) -> list[tuple[str, float, float]]:
    """(assumption, change of the step's time where it is halved, and where it is doubled)."""
    told = []
    for quantity in found.machine.quantities.values():
        if quantity.grade or quantity.name in ("rows", "columns", "most_replicas", "code_share"):
            continue
        changes = []
        for factor in (0.5, 2.0):
            changed = replace(quantity, value=quantity.value * factor)
            quantities = {**found.machine.quantities, quantity.name: changed}
            machine = replace(found.machine, quantities=quantities)
            if found.mode == STREAMING:
                other = predict_streaming(
                    found.workload, machine, found.release.name, found.num_csx
                )
            else:
                other = predict_replicas(
                    found.workload, machine, found.release.name, found.replicas
                )
            changes.append(found.micro_batches * other.step_s / found.step_s - 1)
        told.append((quantity.name, changes[0], changes[1]))
    return told
