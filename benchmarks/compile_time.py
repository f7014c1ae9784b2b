"""Measures how long compiling a training step takes, from the captured graph to the program.

For example GPT-2's width at two depths, or the sizes of params files::

    scripts/cerebras-tf bench compile_time --blocks 64 128
    scripts/cerebras-tf bench compile_time --config configs/params_gpt3_xl_pile.yaml

Without `--config` the model is GPT-2 with dropout 0.1 everywhere and clipping by the gradients'
global norm. Nothing is allocated for weights: graphs hold shapes only, so any size can be measured.
Seconds are CPU seconds of this process, on which other programs have less effect than on the clock.
Every depth is captured again for each round; the shortest round is shown.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cerebras_tf.api import positive_int
from modelzoo.commands.configs import config_path

BLOCKS = (4, 8, 16, 64, 128)


@dataclass
class Compiled:
    """What compiling one model gave.

    Attributes:
        name: shown in the table.
        nodes: of the captured graph.
        capture_s: CPU seconds of building and capturing TensorFlow's graph.
        layers_s: CPU seconds of the passes before and including the cut into layers.
        program_s: CPU seconds of everything after the cut.
        layers: of the program.
        bodies: instruction lists of the program.
        arena_bytes: of the program.
    """

    name: str
    nodes: int
    capture_s: float
    layers_s: float
    program_s: float
    layers: int
    bodies: int
    arena_bytes: int

    @property
    def total_s(self) -> float:
        """CPU seconds from graph to program."""
        return self.layers_s + self.program_s


def read_blocks(blocks: int) -> Any:
    """Parameters of GPT-2 small at a depth, in float32, with dropout and clipping."""
    from modelzoo.common.config.params import load_params

    return load_params(
        config_path("gpt2_small"),
        {
            "model.num_hidden_layers": blocks,
            "model.dropout_rate": 0.1,
            "model.attention_dropout_rate": 0.1,
            "model.mixed_precision": False,
            "optimizer.loss_scaling_factor": 1.0,
            "optimizer.max_gradient_norm": 1.0,
        },
    )


def capture_training(params: Any) -> Any:
    """The training step of a model as a StepGraph, for blank features of its own shapes."""
    import tensorflow as tf

    from cerebras_tf.capture.variables import tensor_type
    from cerebras_tf.config import schema
    from cerebras_tf.estimator.model_graph import record
    from modelzoo.common.config import registry

    package, data = registry.load_model(params.model_name)
    tree = schema.as_tree(params)
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(1)
        blank = data.INPUTS.blank(tree).element_spec
        fed = tf.nest.map_structure(
            lambda each: tf.compat.v1.placeholder(each.dtype, each.shape), blank
        )
        mode = tf.estimator.ModeKeys.TRAIN
        model = record(lambda: package.model_fn(*fed, mode, tree))
        types = {tensor: tensor_type(tensor) for tensor in tf.nest.flatten(fed)}
        train_op = model.spec.train_op
        effects = [getattr(train_op, "op", train_op)]
        return model.capture(types).run({"loss": model.spec.loss}, effects)


def measure(name: str, params: Any, rounds: int) -> Compiled:
    """Captures and compiles; the least CPU seconds of the rounds."""
    from cerebras_tf.compiler.pipeline import compile_layers, cut_into_layers

    best = None
    for _ in range(rounds):
        start = time.process_time()
        step = capture_training(params)
        nodes, captured = len(step.graph.nodes), time.process_time()
        layers = cut_into_layers(step)
        cut = time.process_time()
        program = compile_layers(step, layers)
        found = Compiled(
            name,
            nodes,
            capture_s=captured - start,
            layers_s=cut - captured,
            program_s=time.process_time() - cut,
            layers=layers,
            bodies=len(program.bodies),
            arena_bytes=program.arena_bytes,
        )
        if best is None or found.total_s < best.total_s:
            best = found
    assert best is not None
    return best


def report(found: list[Compiled]) -> None:
    """Prints the table, and how much longer each model takes than the one above it."""
    width = max(len(each.name) for each in found)
    head = (
        "nodes",
        "layers",
        "bodies",
        "arena GB",
        "capture s",
        "to layers",
        "to program",
        "total s",
    )
    print(" " * width + "".join(f"{word:>11}" for word in head))
    for each, before in zip(found, [None, *found]):
        cells = (
            f"{each.nodes}",
            f"{each.layers}",
            f"{each.bodies}",
            f"{each.arena_bytes / 1e9:.3f}",
            f"{each.capture_s:.2f}",
            f"{each.layers_s:.2f}",
            f"{each.program_s:.2f}",
            f"{each.total_s:.2f}",
        )
        line = f"{each.name:{width}}" + "".join(f"{cell:>11}" for cell in cells)
        print(line + (f"  x {each.total_s / before.total_s:.2f}" if before is not None else ""))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "--blocks",
        type=positive_int,
        nargs="+",
        metavar="N",
        help="depths of GPT-2 to compile (without --config: 4 8 16 64 128)",
    )
    parser.add_argument(
        "--config",
        nargs="+",
        default=[],
        metavar="YAML",
        help="params files to compile as they are",
    )
    parser.add_argument(
        "--rounds", type=positive_int, default=1, metavar="N", help="rounds (default: 1)"
    )


def run(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints the table."""
    from modelzoo.common.config.params import load_params

    blocks = args.blocks or ([] if args.config else BLOCKS)
    models = [(f"{count} blocks", read_blocks(count)) for count in blocks]
    models += [(Path(path).stem, load_params(path)) for path in args.config]
    report([measure(name, params, args.rounds) for name, params in models])
