"""What a real system would do with a compiled model."""

from __future__ import annotations

import os
from typing import Any

from cerebras_tf.compiler.workload import workload_of_program
from cerebras_tf.estimator.run_config import execution_mode_from_environment
from cerebras_tf.ir.program import Program
from cerebras_tf.wafer.machine import load_machine
from cerebras_tf.wafer.pipelined import predict_pipelined
from cerebras_tf.wafer.prediction import STREAMING, Prediction
from cerebras_tf.wafer.streaming import predict_streaming

MACHINE = "cs2"


def predict_program(program: Program, call: Any, config: Any) -> Prediction:
    """What a CS-2 would do with a program.

    Args:
        program: as it is where activations have all the memory they want.
        call: the context of the call, which knows examples and tokens of a batch.
        config: the run configuration, which knows the number of systems; the model is called as
            its model_dir.
    """
    name = os.path.basename(os.path.normpath(config.model_dir))
    workload = workload_of_program(program, name, call.examples, call.tokens)
    machine = load_machine(MACHINE)
    if execution_mode_from_environment() == STREAMING:
        num_csx = getattr(config, "num_csx", None) or 1
        return predict_streaming(workload, machine, num_csx=num_csx)
    return predict_pipelined(workload, machine)
