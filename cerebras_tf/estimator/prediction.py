"""What a real system would do with a compiled model."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from cerebras_tf.compiler.workload import workload_of_program
from cerebras_tf.environment import execution_mode_from_environment
from cerebras_tf.ir.program import Program
from cerebras_tf.wafer.pipelined import predict_pipelined, predict_split
from cerebras_tf.wafer.prediction import STREAMING, Prediction
from cerebras_tf.wafer.streaming import predict_streaming
from cerebras_tf.wafer.system import load_machine

MACHINE = "cs2"


def predict_program(program: Program, call: Any, config: Any) -> Prediction:
    """What a CS-2 would do with a program.

    Args:
        program: as it is where activations have all the memory they want.
        call: the context of the call, which knows examples and tokens of a batch, the numbers of
            systems and of micro-batches, and what of the weights is pruned.
        config: the run configuration, which knows whether copies of the model share the batch; the
            model is called as its model_dir.
    """
    name = os.path.basename(os.path.normpath(config.model_dir))
    sparse = None if call.model is None else call.model.sparse
    density = {} if sparse is None else sparse.density
    trainable = None if call.model is None else call.weights()
    workload = workload_of_program(program, name, call.examples, call.tokens, density, trainable)
    machine, parts = load_machine(MACHINE), call.micro_batches
    if execution_mode_from_environment() == STREAMING:
        found = predict_streaming(workload, machine, num_csx=call.systems)
    else:  # one system, which takes the batches of several in turn
        copies = config.multireplica and workload.trains
        found = (predict_split if copies else predict_pipelined)(workload, machine)
        parts *= call.systems
    return replace(found, micro_batches=parts if workload.trains else 1)


def systems_of(config: Any, params: Any) -> int:
    """Systems whose batches a step takes.

    Args:
        config: the run configuration.
        params: those of the model. Where one wafer computes the batches of several in turn, as the
            models of modelzoo do, `params["runconfig"]["num_csx"]` is their number.
    """
    named = _number_in(params, "runconfig", "num_csx")
    return max(config.num_csx, named)


def micro_batches_of(params: Any) -> int:
    """Batches whose gradients a system adds up for a step.

    Args:
        params: those of the model; the models of modelzoo have the number as
            `params["optimizer"]["grad_accum_steps"]`.
    """
    return _number_in(params, "optimizer", "grad_accum_steps")


def _number_in(params: Any, section: str, key: str) -> int:
    """A whole number above 0 in a section of parameters; 1 where there is none."""
    found = params.get(section) if isinstance(params, dict) else None
    number = found.get(key) if isinstance(found, dict) else None
    return number if isinstance(number, int) and number > 0 else 1


def replicas_line(found: Prediction) -> str:
    """What is said of the copies of a model that share the batch."""
    if found.mode == STREAMING:
        return "multireplica: in pipelined mode alone (python, not python-ws); one is trained"
    if found.replicas == 1:
        return "multireplica: one replica of the model is fastest, or more do not fit the wafer"
    return (
        f"multireplica: {found.replicas} replicas of the model fill the wafer, each with "
        f"{found.workload.batch:,} of the {found.replicas * found.workload.batch:,} samples of a "
        "batch; gradients are averaged every batch, and numbers are those of one replica with all "
        "samples"
    )
