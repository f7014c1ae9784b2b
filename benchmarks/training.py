"""Measures training on the wafer against tf.estimator on the host, in one run on one computer.

For example, at the shape of GPT-2 with four layers, at that of BERT on sentences as long as those
of SST-2, or in seconds at a tiny shape::

    scripts/cerebras-tf bench --rounds 5
    scripts/cerebras-tf bench --model bert --pad batch
    scripts/cerebras-tf bench --model transformer
    scripts/cerebras-tf bench --smoke
    scripts/cerebras-tf bench --bfloat16 --peers --json bench.json --plot bench.svg
    scripts/cerebras-tf bench --memoryx_dir /data --memoryx_ram_gb 1.9 --hidden 2048 --batch 4
    scripts/cerebras-tf bench --overhead

`--peers` adds PyTorch, where it is installed. `--memoryx_dir` compares weights on files with
weights in memory, both on the wafer. `--overhead` measures a step without its kernels
(overhead.py).

Both sides run tf.estimator's own loop on the same model_fn, the same batch and the same initial
values. Each has its own process, so that they share no threads and no memory pools. They take
turns, wafer, host, wafer, host, and each waits without work while the other runs, because the speed
of a shared computer drifts by more than the difference to be measured. A float32 matrix product
runs before and after every turn: its mean speed is what the computer gave at best during the turn.
CPU seconds, of all threads together, show how much work was done where other programs used the
cores.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from benchmarks import overhead
from benchmarks.models import MODELS, PADDINGS, SEED, make_input_fn, model_fn_of, read_params
from benchmarks.peers import PEERS, Missing, run_peer
from benchmarks.report import print_figures, print_traffic, write_json, write_plot
from benchmarks.turns import Turn, Turns
from cerebras_tf.api import gigabytes, positive_int
from cerebras_tf.errors import CerebrasError, ConfigError
from cerebras_tf.kernels.instruction_set import AMX, AVX512_BF16, why_unavailable
from cerebras_tf.whole_file import require_place

WAFER, HOST = "wafer", "host"
BFLOAT16 = "bfloat16"  # the wafer with precision bfloat16
MEMORY, FILES = "memory", "files"
COMPARED = (
    (WAFER, HOST),
    (BFLOAT16, WAFER),
    (BFLOAT16, HOST),
    *((WAFER, peer) for peer, how in PEERS.items() if not how.bfloat16),
    *((BFLOAT16, peer) for peer, how in PEERS.items() if how.bfloat16),
)
WARM_UP_STEPS = 1
_END_S = 20  # for a peer to end by itself


# Texts of the options of a Shape.
SIZES = {
    "layers": "number of layers",
    "hidden": "hidden size",
    "batch": "sequences of a batch",
    "sequence": "tokens of a sequence",
    "vocabulary": "size of the vocabulary",
}


@dataclass(frozen=True)
class Shape:
    """The model, its sizes and how it is padded; `product` is the side of the sgemm's matrices.

    Heads are as wide as those of the model's published sizes.
    """

    model: str = "gpt2"
    pad: str = "fixed"
    layers: int = 4
    hidden: int = 768
    sequence: int = 512
    batch: int = 4
    vocabulary: int = 50257
    product: int = 4096
    head_size: int = 64

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.sequence

    @property
    def heads(self) -> int:
        """Attention heads; one where the model is narrower than a head."""
        return max(1, self.hidden // self.head_size)


SHAPES = {
    "gpt2": Shape(),
    "bert": Shape(model="bert", sequence=128, batch=32, vocabulary=30522),
    "gptj": Shape(model="gptj", layers=2, hidden=1024, head_size=256, vocabulary=50400),
    "transformer": Shape(
        model="transformer", layers=6, hidden=512, sequence=48, batch=64, vocabulary=37000
    ),
}


@dataclass(frozen=True)
class Comparison:
    """What is compared.

    Attributes:
        sides: their names.
        memoryx_dir: where the side FILES keeps weights and optimizer state.
        memoryx_ram_gb: what it may keep of them in memory; None for the program's own choice.
    """

    sides: tuple[str, ...] = (WAFER, HOST)
    memoryx_dir: Optional[str] = None
    memoryx_ram_gb: Optional[float] = None


SMOKE = Shape(layers=1, hidden=128, sequence=32, batch=2, vocabulary=257, product=256)


def make_estimator(shape: Shape, side: str, compared: Comparison, folder: str) -> Any:
    """An estimator that only trains: it writes no checkpoints and no summaries."""
    from cerebras_tf import CerebrasEstimator, CSRunConfig
    from cerebras_tf.config import schema

    config = CSRunConfig(
        tf_random_seed=SEED,
        save_summary_steps=None,
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        log_step_count_steps=None,
        precision=BFLOAT16 if side == BFLOAT16 else None,
        memoryx_dir=compared.memoryx_dir if side == FILES else None,
        memoryx_ram_gb=compared.memoryx_ram_gb if side == FILES else None,
    )
    params = schema.as_tree(read_params(shape))
    model_fn = model_fn_of(shape)
    return CerebrasEstimator(model_fn, folder, config=config, params=params, use_cs=side != HOST)


def make_turn_hook(pipe: Any, started: float) -> Any:
    """A hook that pauses training, and continues it by as many steps as the pipe receives.

    Args:
        pipe: to the process that measures.
        started: when the side's work began, of `time.perf_counter`.
    """
    import tensorflow as tf

    from cerebras_tf.estimator.call import enclosing_training
    from cerebras_tf.memoryx.store import IoStats

    def moved() -> IoStats:
        """The traffic of this training's store so far; none on the host."""
        call = enclosing_training()
        return dataclasses.replace(call.model.store.io_stats) if call and call.model else IoStats()

    class TurnHook(tf.estimator.SessionRunHook):
        """Waits between turns and times every step of a turn, from end to end of the loop."""

        def __init__(self) -> None:
            self._left = WARM_UP_STEPS
            self._turns = Turns(started)
            self._before = IoStats()

        def before_run(self, run_context: Any) -> Any:
            (loss,) = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)
            return tf.estimator.SessionRunArgs(loss)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            """Notes the time; after the last step of a turn reports it and waits for the next."""
            self._turns.note()
            self._left -= 1
            if self._left:
                return
            turn = self._turns.ended(float(run_values.results))
            now, before = moved(), self._before
            turn.stalled_s = now.stalled_s - before.stalled_s
            turn.moved = now.bytes_read + now.bytes_written
            turn.moved -= before.bytes_read + before.bytes_written
            self._before = now
            pipe.send(turn)
            self._left = pipe.recv()
            self._turns.begin()

    return TurnHook()


def run_side(pipe: Any, folder: str, shape: Shape, side: str, compared: Comparison) -> None:
    """A side's process: warms up, then runs as many steps as it receives, until it is killed.

    Sends, first, the floating point operations of a step where it runs on the wafer, else 0; then a
    Turn for the warm-up and for every number it gets. An error is sent in place of either.
    """
    started = time.perf_counter()
    import tensorflow as tf

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.WARN)
    try:
        estimator = make_estimator(shape, side, compared, folder)
        input_fn = make_input_fn(shape)
        pipe.send(estimator.compile(input_fn).flops if side != HOST else 0)
        estimator.train(input_fn, hooks=[make_turn_hook(pipe, started)])
    except CerebrasError as error:
        pipe.send(error)


def receive(side: str, pipe: Any) -> Any:
    """The next message of a side; raises what went wrong there."""
    try:
        message = pipe.recv()
    except EOFError as error:
        raise CerebrasError(
            f"{side}: its process must live until the end. Received: it is gone. Its message "
            "is above; with none, memory ran out: lower --batch or --sequence."
        ) from error
    if isinstance(message, CerebrasError):
        raise message
    return message


@contextlib.contextmanager
def side_processes(shape: Shape, compared: Comparison) -> Any:
    """Gives the pipes to all sides' processes, by name; ends them on leaving.

    Peers end by themselves, so that what their compiler holds is given back; the others would save.
    """
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, {}
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        try:
            for side in compared.sides:
                pipes[side], theirs = context.Pipe()
                target: Any = run_peer if side in PEERS else run_side
                arguments: tuple[Any, ...] = (theirs, shape, side)
                if side not in PEERS:
                    arguments = (theirs, f"{folder}/{side}", shape, side, compared)
                processes[side] = context.Process(target=target, args=arguments)
                processes[side].start()
                theirs.close()
            yield dict(pipes)
        finally:
            for side, process in processes.items():
                if side in PEERS:
                    pipes[side].close()
                    process.join(_END_S)
                process.kill()
                process.join()


def warm_up(pipes: dict[str, Any]) -> int:
    """Waits until all sides are ready; removes those that cannot run here, with a line.

    Returns:
        The floating point operations of a step.
    """
    flops = 0
    for side, pipe in list(pipes.items()):
        found = receive(side, pipe)
        if isinstance(found, Missing):
            print(f"{side}: not measured: {found.reason}", flush=True)
            del pipes[side]
        else:
            flops = max(flops, found)
    for side, pipe in pipes.items():
        receive(side, pipe)
    return flops


def sgemm_flops_per_s(size: int) -> float:
    """Speed of the fastest product of square float32 matrices there is here: 2 size^3 operations.

    That is ours or, where it is installed, PyTorch's. NumPy's own may be several times slower: its
    OpenBLAS of 0.3.23 takes kernels without AVX on a Xeon with AMX.
    """
    import numpy as np

    from cerebras_tf.kernels.blas import gemm

    a = np.ones((size, size), np.float32)
    result = np.empty_like(a)
    products: list[Callable[[], Any]] = [lambda: gemm(a, a, result)]
    if importlib.util.find_spec("torch") is not None:
        torch = importlib.import_module("torch")
        tensor, into = torch.from_numpy(a), torch.from_numpy(result)
        products.append(lambda: torch.mm(tensor, tensor, out=into))
    seconds = []
    for product in products:
        started = time.perf_counter()
        product()
        seconds.append(time.perf_counter() - started)
    return 2.0 * size**3 / min(seconds)


def measure(pipes: dict[str, Any], rounds: int, steps: int, size: int) -> dict[str, list[Turn]]:
    """Runs `steps` steps of each side alternately, `rounds` times. Returns turns by side."""
    turns: dict[str, list[Turn]] = {side: [] for side in pipes}
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
            print(f"round {number + 1}, {side:13}: {shown} s", flush=True)
    return turns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("--smoke", action="store_true", help="use a tiny shape")
    parser.add_argument(
        "--model",
        choices=MODELS,
        default=MODELS[0],
        help="bert: sentences as long as SST-2's, batch 32, sequence 128; gptj: 2 layers x 1024; "
        "transformer: pairs as long as Multi30k's, batch 64, sequence 48 (default: gpt2)",
    )
    parser.add_argument(
        "--pad",
        choices=PADDINGS,
        default=PADDINGS[0],
        help="of bert and transformer: to the sequence length, or to each batch's longest "
        "(default: fixed)",
    )
    against = parser.add_mutually_exclusive_group()
    against.add_argument(
        "--bfloat16", action="store_true", help="also measure the wafer with precision bfloat16"
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="also measure PyTorch, eager and compiled, with --bfloat16 also with autocast",
    )
    parser.add_argument("--json", metavar="FILE", help="write all measurements to this file")
    parser.add_argument(
        "--plot", metavar="FILE", help="write a plot of tokens per second to this SVG file"
    )
    for name, text in SIZES.items():
        full = ", ".join(f"{getattr(shape, name)} of {model}" for model, shape in SHAPES.items())
        text += f" (default: {full}; with --smoke {getattr(SMOKE, name)})"
        parser.add_argument(f"--{name}", type=positive_int, metavar="N", help=text)
    text = "compare weights in files of this folder with weights in memory"
    against.add_argument("--memoryx_dir", metavar="FOLDER", help=text)
    against.add_argument(
        "--overhead",
        action="store_true",
        help="only measure the time of a step of the tiny GPT outside of kernels",
    )
    text = "main memory for them, GB (default: automatic)"
    parser.add_argument("--memoryx_ram_gb", type=gigabytes, metavar="GB", help=text)
    for name, default in (("rounds", 3), ("steps", 3)):
        text = "turns of each side" if name == "rounds" else "steps of a turn"
        text += f" (default: {default})"
        parser.add_argument(f"--{name}", type=positive_int, default=default, metavar="N", help=text)


def check_given(args: argparse.Namespace) -> None:
    """Raises ConfigError where an argument would have no effect."""
    if args.overhead:
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        usual = vars(parser.parse_args(["--overhead"]))
        given = [f"--{name}" for name, value in usual.items() if getattr(args, name) != value]
        if given:
            raise ConfigError(
                "bench --overhead: must be used without other options. Received: "
                f"{', '.join(given)}. Remove them."
            )
    if args.memoryx_ram_gb and not args.memoryx_dir:
        raise ConfigError(
            f"bench --memoryx_ram_gb: needs --memoryx_dir. Received: {args.memoryx_ram_gb:g} "
            "without. Use the folder, or remove it."
        )
    if args.memoryx_dir and args.peers:
        raise ConfigError(
            "bench --memoryx_dir: compares files with memory, on the wafer. Received: --peers "
            "as well. Run them separately."
        )
    if args.pad == "batch" and args.model not in ("bert", "transformer"):
        raise ConfigError(
            f"bench --pad batch: needs bert or transformer. Received: {args.model}, whose "
            "sequences are all of one length. Remove it."
        )


def peers_of(bfloat16: bool) -> list[str]:
    """Names of PyTorch's sides; those in bfloat16 where asked for and the processor supports it."""
    if bfloat16 and why_unavailable(AVX512_BF16) and why_unavailable(AMX):
        print("PyTorch's autocast is not measured: a step takes minutes on this processor, which")
        print("has no instructions for bfloat16")
        bfloat16 = False
    return [name for name, how in PEERS.items() if bfloat16 or not how.bfloat16]


def run(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints what it found."""
    check_given(args)
    require_place(args.json, "--json")
    require_place(args.plot, "--plot")
    if args.overhead:
        overhead.run()
        return
    given = {name: value for name, value in vars(args).items() if value and hasattr(Shape, name)}
    shape = dataclasses.replace(SMOKE if args.smoke else SHAPES[args.model], **given)
    read_params(shape)  # raises before anything starts
    print(
        f"{shape.model}: {shape.layers} layers x {shape.hidden}, {shape.heads} heads, filter "
        f"{4 * shape.hidden}, sequence {shape.sequence}, batch {shape.batch}, vocabulary "
        f"{shape.vocabulary}, {'Adam' if shape.model == 'transformer' else 'AdamW'}, float32"
    )
    with contextlib.ExitStack() as stack:
        sides = (*((BFLOAT16,) if args.bfloat16 else ()), WAFER, HOST)
        compared = Comparison((*sides, *(peers_of(args.bfloat16) if args.peers else ())))
        if args.memoryx_dir:  # sides are killed in the end, so what they leave goes with a folder
            Path(args.memoryx_dir).mkdir(parents=True, exist_ok=True)
            store = tempfile.TemporaryDirectory(prefix="bench", dir=args.memoryx_dir)
            folder = stack.enter_context(store)
            compared = Comparison((MEMORY, FILES), folder, args.memoryx_ram_gb)
        pipes = stack.enter_context(side_processes(shape, compared))
        flops = warm_up(pipes)
        counted = "counted in the compiled program"
        counted += ", padding included" if shape.model in ("bert", "transformer") else ""
        print(f"{flops / 1e12:.4g} TFLOP per step, {counted}", flush=True)
        turns = measure(pipes, args.rounds, args.steps, shape.product)
    print_figures(shape, flops, turns, COMPARED)
    if FILES in turns:
        print_traffic(turns[MEMORY], turns[FILES])
    if args.json:
        write_json(args.json, shape, flops, turns)
    if args.plot:
        write_plot(args.plot, shape, turns)
