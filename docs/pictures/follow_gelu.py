"""Prints how one gelu changes from TensorFlow's graph to the fused kernel.

Run it as ``python docs/pictures/follow_gelu.py``. docs/concepts/compilation.md shows its output.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import tensorflow as tf

from cerebras_tf import CerebrasEstimator, CSRunConfig
from cerebras_tf.compiler import pipeline
from cerebras_tf.ir.text import print_graph

AFTER = ("differentiate", "fuse_elementwise")


def input_fn():
    """Yields eight rows of sixteen numbers, again and again."""
    return tf.data.Dataset.from_tensors(np.ones((8, 16), np.float32)).repeat()


def model_fn(features, labels, mode):
    """A bias, a gelu and a mean."""
    bias = tf.compat.v1.get_variable("bias", [16])
    y = tf.nn.gelu(features + bias, approximate=True)
    loss = tf.reduce_mean(y)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    step = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    operations = [each.type for each in tf.compat.v1.get_default_graph().get_operations()]
    print("TensorFlow:", *operations[operations.index("Pow") - 2 :][:9])
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)


def main() -> None:
    """Trains one step and prints the graph as captured, and after some passes."""
    shown: list[str] = []
    run_passes = pipeline.run_passes

    def show(step, passes):
        if not shown:
            shown.append("capture")
            print(f"\nafter capture:\n{text(step)}")
        for name, change in passes:
            run_passes(step, [(name, change)])
            if name in AFTER and name not in shown:
                shown.append(name)
                print(f"\nafter {name}:\n{text(step)}")

    pipeline.run_passes = show
    with tempfile.TemporaryDirectory() as folder:
        config = CSRunConfig(tf_random_seed=1)
        CerebrasEstimator(model_fn, folder, config=config).train(input_fn, max_steps=1)


def text(step) -> str:
    """The step's graph, with short constants and without the sources of its nodes."""
    printed = re.sub(r" *#.*", "", print_graph(step.graph))
    printed = re.sub(r"constant\(\) \{value=dense\(\w+, \[\], \[([^]]*)\]\).*?\}", number, printed)
    printed = re.sub(r"constant\(\) \{value=digest.*?\}", "constant 1/128, 8 x 16 times", printed)
    return printed.replace("IteratorGetNext:0", "features")


def number(match) -> str:
    """A constant with six digits."""
    return f"constant {float(match[1]):.6g}"


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    main()
