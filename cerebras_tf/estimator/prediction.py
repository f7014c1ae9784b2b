"""What a real system would do with a compiled model."""

from __future__ import annotations

import os
from typing import Any

from cerebras_tf.compiler.workload import workload_of_program
from cerebras_tf.estimator.run_config import execution_mode_from_environment
from cerebras_tf.ir.program import Program
from cerebras_tf.wafer.machine import load_machine
from cerebras_tf.wafer.pipelined import predict_pipelined, predict_split
from cerebras_tf.wafer.prediction import STREAMING, Prediction
from cerebras_tf.wafer.streaming import predict_streaming

MACHINE = "cs2"


def predict_program(program: Program, call: Any, config: Any) -> Prediction:
    """What a CS-2 would do with a program.

    Args:
        program: as it is where activations have all the memory they want.
        call: the context of the call, which knows examples and tokens of a batch, the number of
            systems, and what of the weights is pruned.
        config: the run configuration, which knows whether copies of the model share the batch; the
            model is called as its model_dir.
    """
    name = os.path.basename(os.path.normpath(config.model_dir))
    sparse = None if call.model is None else call.model.sparse
    density = {} if sparse is None else sparse.density
    workload = workload_of_program(program, name, call.examples, call.tokens, density)
    machine = load_machine(MACHINE)
    if execution_mode_from_environment() == STREAMING:
        return predict_streaming(workload, machine, num_csx=call.systems)
    if getattr(config, "multireplica", False) and workload.trains:
        return predict_split(workload, machine)
    return predict_pipelined(workload, machine)


def systems_of(config: Any, params: Any) -> int:
    """Systems whose batches a step takes.

    Args:
        config: the run configuration.
        params: those of the model. Where one wafer computes the batches of several in turn, as the
            models of modelzoo do, `params["runconfig"]["num_csx"]` is their number.
    """
    section = params.get("runconfig") if isinstance(params, dict) else None
    named = section.get("num_csx") if isinstance(section, dict) else None
    return max(getattr(config, "num_csx", None) or 1, named if isinstance(named, int) else 1)


def replicas_line(found: Prediction) -> str:
    """What is said of the copies of a model that share the batch."""
    if found.mode == STREAMING:
        return "multireplica: in pipelined mode alone (python, not python-ws); one is trained"
    if found.replicas == 1:
        return "multireplica: one replica of the model is fastest, or more do not fit the wafer"
    return (
        f"multireplica: {found.replicas} replicas of the model fill the wafer, each with "
        f"{found.workload.batch:,} of the {found.global_batch:,} samples of a batch; gradients are "
        "averaged every batch, and numbers are those of one replica with all samples"
    )
