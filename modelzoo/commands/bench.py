"""Measures training on the wafer against tf.estimator on the host, in one run on one machine.

For example, at the shape of GPT-2 with four layers, or in seconds at one too small to tell::

    cerebras-tf bench --rounds 5
    cerebras-tf bench --smoke

Both sides run tf.estimator's own loop on the same model_fn, the same batch and the same initial
values; each lives in a process of its own, so that neither's threads and memory pools are in the
other's way. They take turns, wafer, host, wafer, host, each waiting without work while the other
runs, because a shared machine's speed drifts by more than what is to be shown. Before and after
every turn stands one float32 matrix product: their mean speed is what the machine gave at best
during the turn. CPU seconds, of all threads together, tell how much work was done where other
programs took the cores away.

It keeps no results and judges none; tests assert no times.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import multiprocessing
import statistics
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from cerebras_tf.cli.arguments import positive_int
from cerebras_tf.errors import CerebrasError
from modelzoo.commands.configs import config_folder

SIDES = ("wafer", "host")
HEAD_SIZE = 64
WARM_UP_STEPS = 1
SEED = 1


@dataclass(frozen=True)
class Shape:
    """The model's sizes; `product` is the side of the square matrices of the sgemm."""

    layers: int = 4
    hidden: int = 768
    sequence: int = 512
    batch: int = 4
    vocabulary: int = 50257
    product: int = 4096

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.sequence

    @property
    def heads(self) -> int:
        """Attention heads of 64, GPT-2's; one where the model is narrower."""
        return max(1, self.hidden // HEAD_SIZE)


SMOKE = Shape(layers=1, hidden=128, sequence=32, batch=2, vocabulary=257, product=256)


@dataclass
class Turn:
    """What is known of a turn.

    Attributes:
        step_s: seconds of each step.
        cpu_s: CPU seconds of each step, of all threads.
        loss: loss of the last step.
        sgemm: speed of matrix products around the turn in FLOP/s; filled in by `measure`.
    """

    step_s: list[float]
    cpu_s: list[float]
    loss: float
    sgemm: float = 0.0


def read_params(shape: Shape) -> Any:
    """Parameters of GPT-2 at a shape, in float32 and without dropout."""
    from modelzoo.common.params import load_params

    return load_params(
        config_folder() / "params_gpt2_small.yaml",
        {
            "train_input.vocab_size": shape.vocabulary,
            "train_input.max_sequence_length": shape.sequence,
            "train_input.batch_size": shape.batch,
            "model.hidden_size": shape.hidden,
            "model.num_hidden_layers": shape.layers,
            "model.num_heads": shape.heads,
            "model.filter_size": 4 * shape.hidden,
            "model.loss_weight": 1.0 / shape.sequence,  # the mean of the tokens' losses
            "model.dropout_rate": 0.0,
            "model.attention_dropout_rate": 0.0,
            "model.mixed_precision": False,
            "optimizer.loss_scaling_factor": 1.0,
        },
    )


def make_estimator(shape: Shape, use_cs: bool, folder: str) -> Any:
    """An estimator that only trains: it writes no checkpoints and no summaries."""
    from cerebras_tf import CerebrasEstimator, CSRunConfig
    from modelzoo.common import schema
    from modelzoo.gpt3.model import model_fn

    config = CSRunConfig(
        tf_random_seed=SEED,
        save_summary_steps=None,
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        log_step_count_steps=None,
    )
    params = schema.as_tree(read_params(shape))
    return CerebrasEstimator(model_fn, folder, config=config, params=params, use_cs=use_cs)


def make_input_fn(shape: Shape) -> Any:
    """An input function that gives one batch of random tokens again and again."""
    import numpy as np
    import tensorflow as tf

    size = (shape.batch, shape.sequence + 1)
    tokens = np.random.default_rng(SEED).integers(0, shape.vocabulary, size, np.int32)

    def input_fn() -> Any:
        ids, labels = tokens[:, :-1], tokens[:, 1:]
        features = {"input_ids": ids, "input_mask": np.zeros_like(ids)}
        return tf.data.Dataset.from_tensors((features, labels)).repeat()

    return input_fn


def make_turn_hook(pipe: Any) -> Any:
    """A hook that lets training go on by as many steps as the pipe tells."""
    import tensorflow as tf

    class TurnHook(tf.estimator.SessionRunHook):
        """Waits between turns and times every step of a turn, from end to end of the loop."""

        def __init__(self) -> None:
            self._left = WARM_UP_STEPS
            self._ends: list[tuple[float, float]] = []

        def before_run(self, run_context: Any) -> Any:
            """Asks for the loss."""
            (loss,) = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)
            return tf.estimator.SessionRunArgs(loss)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            """Notes the time; after the last step of a turn reports it and waits for the next."""
            self._ends.append((time.perf_counter(), time.process_time()))
            self._left -= 1
            if self._left:
                return
            step_s, cpu_s = (
                [end - start for start, end in zip(clock, clock[1:])] for clock in zip(*self._ends)
            )
            pipe.send(Turn(step_s, cpu_s, float(run_values.results)))
            self._left = pipe.recv()
            self._ends = [(time.perf_counter(), time.process_time())]

    return TurnHook()


def run_side(pipe: Any, folder: str, shape: Shape, use_cs: bool) -> None:
    """A side's process: warms up, says so, then makes steps when told to, until it is ended.

    Sends, first, the floating point operations of a step where it runs on the wafer, else 0; then a
    Turn for the warm-up and for every number it gets. An error is sent in place of either.
    """
    import tensorflow as tf

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.WARN)
    try:
        estimator = make_estimator(shape, use_cs, folder)
        input_fn = make_input_fn(shape)
        pipe.send(estimator.compile(input_fn).flops if use_cs else 0)
        estimator.train(input_fn, hooks=[make_turn_hook(pipe)])
    except CerebrasError as error:
        pipe.send(error)


def receive(side: str, pipe: Any) -> Any:
    """The next message of a side; raises what went wrong there."""
    try:
        message = pipe.recv()
    except EOFError as error:
        raise CerebrasError(
            f"{side}: its process must live until the end. Received: it is gone. Its own message "
            "stands above; with none, memory ran out: lower --batch or --sequence."
        ) from error
    if isinstance(message, CerebrasError):
        raise message
    return message


@contextlib.contextmanager
def side_processes(shape: Shape) -> Any:
    """Gives the pipes to both sides' processes, by name; ends them on leaving."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        try:
            for side in SIDES:
                pipes[side], theirs = context.Pipe()
                arguments = (theirs, f"{folder}/{side}", shape, side == "wafer")
                processes.append(context.Process(target=run_side, args=arguments))
                processes[-1].start()
                theirs.close()
            yield pipes
        finally:
            for process in processes:
                process.kill()
                process.join()


def sgemm_flops_per_s(size: int) -> float:
    """Speed of one product of square float32 matrices: 2 size^3 operations."""
    import numpy as np

    a = np.ones((size, size), np.float32)
    result = np.empty_like(a)
    started = time.perf_counter()
    np.matmul(a, a, out=result)
    return 2.0 * size**3 / (time.perf_counter() - started)


def measure(pipes: dict[str, Any], rounds: int, steps: int, size: int) -> dict[str, list[Turn]]:
    """Lets both sides make `steps` steps in turn, `rounds` times. Returns turns by side."""
    turns: dict[str, list[Turn]] = {side: [] for side in SIDES}
    sgemm_flops_per_s(size)  # warms up
    before = sgemm_flops_per_s(size)
    for number in range(rounds):
        for side, pipe in pipes.items():
            pipe.send(steps)
            turn = receive(side, pipe)
            after = sgemm_flops_per_s(size)
            turn.sgemm = (before + after) / 2
            before = after
            turns[side].append(turn)
            shown = ", ".join(f"{seconds:.3f}" for seconds in turn.step_s)
            print(f"round {number + 1}, {side:5}: {shown} s", flush=True)
    return turns


def report(shape: Shape, flops: int, turns: dict[str, list[Turn]]) -> None:
    """Prints medians and ratios."""
    median = statistics.median
    print(
        f"\n{'':5}{'s/step':>9}{'CPU s':>9}{'tokens/s':>11}{'GFLOP/s':>9}{'of sgemm':>10}", end=""
    )
    print(f"{'loss':>11}")
    for side, own in turns.items():
        step_s = median(seconds for turn in own for seconds in turn.step_s)
        cpu_s = median(seconds for turn in own for seconds in turn.cpu_s)
        share = median(flops / median(turn.step_s) / turn.sgemm for turn in own)
        print(
            f"{side:5}{step_s:9.4f}{cpu_s:9.4f}{shape.tokens / step_s:11.1f}"
            f"{flops / step_s / 1e9:9.1f}{share:10.0%}{own[-1].loss:11.6f}"
        )
    speeds = [turn.sgemm / 1e9 for own in turns.values() for turn in own]
    print(f"sgemm{'':29}{median(speeds):9.1f}  ({min(speeds):.1f} to {max(speeds):.1f};", end="")
    print(f" {shape.product} x {shape.product})")
    ratios = [
        median(host.step_s) / median(wafer.step_s)
        for wafer, host in zip(turns["wafer"], turns["host"])
    ]
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"wafer: {median(ratios):.2f} times as fast as the host (by round: {shown})")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("--smoke", action="store_true", help="a tiny shape, for trying this out")
    for name in ("layers", "hidden", "batch", "sequence", "vocabulary"):
        full, tiny = getattr(Shape, name), getattr(SMOKE, name)
        text = f"default: {full}, with --smoke {tiny}"
        parser.add_argument(f"--{name}", type=positive_int, metavar="N", help=text)
    for name, default in (("rounds", 3), ("steps", 3)):
        text = "turns of each side" if name == "rounds" else "steps of a turn"
        text += f" (default: {default})"
        parser.add_argument(f"--{name}", type=positive_int, default=default, metavar="N", help=text)


def run(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints what it found."""
    given = {name: value for name, value in vars(args).items() if value and hasattr(Shape, name)}
    shape = dataclasses.replace(SMOKE if args.smoke else Shape(), **given)
    read_params(shape)  # tells mistakes before anything starts
    print(
        f"{shape.layers} layers x {shape.hidden}, {shape.heads} heads, filter {4 * shape.hidden}, "
        f"sequence {shape.sequence}, batch {shape.batch}, vocabulary {shape.vocabulary}, AdamW, "
        "float32"
    )
    with side_processes(shape) as pipes:
        flops = max(receive(side, pipe) for side, pipe in pipes.items())
        for side, pipe in pipes.items():
            receive(side, pipe)  # warm-up
        print(f"{flops / 1e12:.4g} TFLOP a step, counted in the compiled program", flush=True)
        turns = measure(pipes, args.rounds, args.steps, shape.product)
    report(shape, flops, turns)
