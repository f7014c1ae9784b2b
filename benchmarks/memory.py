"""Measures how much memory training from files takes as a model gets deeper.

For example GPT-2 with hidden size 384 at five depths, each in its own process::

    scripts/cerebras-tf bench memory --folder /data --layers 4 8 16 32 64
    scripts/cerebras-tf bench memory --folder /data --clip 1.0
    scripts/cerebras-tf bench memory --folder /data --loss_scale dynamic

Weights and optimizer state are stored in the folder and deleted afterwards. Peaks are of the whole
process, start-up and TensorFlow included: of resident memory (VmHWM), and of anonymous memory,
which no file backs (the highest RssAnon of ten samples a second).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any, Union

from benchmarks import command
from cerebras_tf.api import positive_int, positive_number
from cerebras_tf.errors import CerebrasError

LAYERS = (4, 8, 16, 32, 64)
STEPS = 3
_INTERVAL_S = 0.1
_BAR_BYTES = 2**30 / 10  # of a mark in the bars that are printed


def status_bytes(name: str) -> int:
    """Returns a line of /proc/self/status in bytes; see proc(5)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024  # the kernel reports KiB
    raise OSError(f"/proc/self/status must have a line {name}. Received: a kernel without it.")


class Watch(threading.Thread):
    """Samples the anonymous memory of this process until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most_anonymous = 0
        self._stopped = threading.Event()

    def run(self) -> None:
        """Keeps the largest sample."""
        while not self._stopped.wait(_INTERVAL_S):
            self.most_anonymous = max(self.most_anonymous, status_bytes("RssAnon"))

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        self.join()


def train(arguments: argparse.Namespace, layers: int) -> dict[str, Any]:
    """Trains a model from files in this process.

    Returns:
        The layers, the peaks in bytes, and the bytes of weights and optimizer state.
    """
    import tensorflow as tf

    from benchmarks.models import make_input_fn, model_fn_of, read_params
    from benchmarks.training import Shape
    from cerebras_tf import CerebrasEstimator, CSRunConfig
    from cerebras_tf.config import schema

    class Count(tf.estimator.SessionRunHook):
        """Counts the bytes of all variables."""

        held = 0

        def begin(self) -> None:
            found = tf.compat.v1.global_variables()
            self.held = sum(4 * math.prod(variable.shape.as_list()) for variable in found)

    shape = Shape(
        layers=layers,
        hidden=arguments.hidden,
        sequence=arguments.sequence,
        batch=arguments.batch,
        vocabulary=arguments.vocabulary,
    )
    params = schema.as_tree(read_params(shape))
    params["optimizer"]["max_gradient_norm"] = arguments.clip
    params["optimizer"]["loss_scaling_factor"] = arguments.loss_scale
    watch = Watch()
    watch.start()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        config = CSRunConfig(
            tf_random_seed=1,
            save_summary_steps=None,
            **({} if arguments.checkpoints else {"save_checkpoints_steps": None}),
            memoryx_dir=folder,
            memoryx_ram_gb=arguments.ram_gb,
            wafer_memory_gb=arguments.wafer_gb,
        )
        estimator = CerebrasEstimator(
            model_fn_of(shape), str(Path(folder, "model")), config=config, params=params
        )
        count = Count()
        estimator.train(make_input_fn(shape), [count], max_steps=STEPS, use_cs=True)
    watch.stop()
    return {
        "layers": layers,
        "resident": status_bytes("VmHWM"),
        "anonymous": watch.most_anonymous,
        "state": count.held,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add = parser.add_argument
    add("--folder", required=True, help="folder for weights and optimizer state")
    add("--layers", type=positive_int, nargs="+", default=LAYERS, help="numbers of layers")
    add("--hidden", type=positive_int, default=384, help="hidden size")
    add("--sequence", type=positive_int, default=128, help="tokens of a sequence")
    add("--batch", type=positive_int, default=4, help="sequences of a batch")
    add("--vocabulary", type=positive_int, default=8192, help="size of the vocabulary")
    add("--ram_gb", type=positive_number, default=0.1, help="memoryx_ram_gb")
    add("--wafer_gb", type=positive_number, default=0.1, help="wafer_memory_gb")
    add("--clip", type=positive_number, help="max_gradient_norm")
    add("--loss_scale", type=_loss_scale, default=1.0, help="a number or dynamic")
    add(
        "--no_checkpoints",
        dest="checkpoints",
        action="store_false",
        help="write none: they take the disk twice, before and after the first step",
    )
    add("--one", action="store_true", help=argparse.SUPPRESS)  # of a child process


def _loss_scale(text: str) -> Union[str, float]:
    return text if text == "dynamic" else positive_number(text)


def given_again(args: argparse.Namespace) -> list[str]:
    """The options of a child process that trains one depth, without --layers."""
    names = ("folder", "hidden", "sequence", "batch", "vocabulary", "ram_gb", "wafer_gb")
    words = [word for name in names for word in (f"--{name}", str(getattr(args, name)))]
    words += ["--loss_scale", str(args.loss_scale)]
    words += ["--clip", str(args.clip)] if args.clip else []
    return [*words, *([] if args.checkpoints else ["--no_checkpoints"]), "--one"]


def run(args: argparse.Namespace) -> None:
    """Measures each depth in its own process and prints a line for it."""
    if args.one:
        print(json.dumps(train(args, args.layers[0])))
        return
    first = None
    for layers in args.layers:
        child = command("memory", *given_again(args), "--layers", str(layers))
        done = subprocess.run(child, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise CerebrasError(
                f"bench memory: training of {layers} layers must succeed. Received: exit code "
                f"{done.returncode}. Its message is above."
            )
        found = json.loads(done.stdout.splitlines()[-1])
        first = first or found
        print(
            f"{layers:4} layers: weights and optimizer state {found['state'] / 1e9:6.2f} GB, peak "
            f"{found['resident'] / 2**30:5.2f} GiB resident, {found['anonymous'] / 2**30:5.2f} "
            f"anonymous, {found['resident'] / first['resident']:.2f} of the first "
            f"|{'#' * round(found['resident'] / _BAR_BYTES)}",
            flush=True,
        )
