"""Measures a program for batches of all lengths against programs compiled for one length each.

For example the small BERT of WikiText-2, without its data::

    scripts/cerebras-tf bench lengths --rounds 9
    scripts/cerebras-tf bench lengths --lengths 16 32 --rounds 3

Both sides train from the same initial values. One is captured with an open sequence length and
trains on all lengths in one run; the other is captured again for every length. At each length they
take turns, step by step, because the speed of a shared computer drifts; medians are shown. The last
line shows how often each side compiled, and for how many CPU seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from cerebras_tf.api import positive_int
from modelzoo.commands.configs import config_path

LENGTHS = (128, 16, 96, 32, 64)
CONFIG = "bert_small_wikitext2"


class Side:
    """A model on the wafer, captured for one length of sequences or for all.

    Attributes:
        compiled: programs made so far.
        compile_s: CPU seconds of making them.
    """

    def __init__(self, params: Any, length: Optional[int]) -> None:
        """Builds the model; `length` None leaves the length open."""
        import tensorflow as tf

        from cerebras_tf.compiler.pipeline import Options
        from cerebras_tf.config import schema
        from cerebras_tf.estimator.model_graph import build
        from cerebras_tf.estimator.run_config import CSRunConfig
        from cerebras_tf.tf_session import initial_values
        from modelzoo.common.config import registry

        package, data = registry.load_model(params.model_name)
        tree = schema.as_tree(params)
        longest = params.train_input.max_sequence_length
        self.compiled, self.compile_s = 0, 0.0
        with tf.Graph().as_default():
            tf.compat.v1.set_random_seed(1)
            blank = data.INPUTS.blank(tree).element_spec

            def placeholder(spec: Any) -> Any:
                dims = [length if dim == longest else dim for dim in spec.shape]
                return tf.compat.v1.placeholder(spec.dtype, dims)

            features, labels = tf.nest.map_structure(placeholder, blank)
            train = tf.estimator.ModeKeys.TRAIN
            model = build(
                lambda: package.model_fn(features, labels, train, tree),
                train,
                Options(),
                self._phase,
                CSRunConfig(),
            )
            with tf.compat.v1.Session() as session:
                found = {v.op.name: v for v in tf.compat.v1.global_variables()}
                owned = {name: found[name] for name in model.store.specs}
                initial_values.initialize(session, owned, model.store)
        self._step, self._fed = model.step, model.fed
        self._vocabulary = params.train_input.vocab_size
        self._step.want((), updates=True)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.process_time()
        yield
        if name.startswith(("capturing", "compiling")):
            self.compile_s += time.process_time() - started
            self.compiled += name.startswith("compiling")

    def arrays(self, length: int, seed: int) -> list[Any]:
        """Random numbers for what is fed, whatever it is called."""
        import numpy as np

        random = np.random.default_rng(seed)
        made = []
        for tensor in self._fed:
            shape = [length if dim is None else dim for dim in tensor.shape.as_list()]
            dtype = tensor.dtype.as_numpy_dtype
            if tensor.dtype.is_integer:
                made.append(random.integers(0, length, shape).astype(dtype))
            else:
                made.append(np.ones(shape, dtype))
        return made

    def run(self, arrays: Sequence[Any]) -> float:
        """Seconds of one training step."""
        started = time.perf_counter()
        self._step.run_arrays(0, arrays)
        return time.perf_counter() - started


def measure(params: Any, lengths: Sequence[int], rounds: int) -> None:
    """Runs both sides and prints the table."""
    open_length = Side(params, None)
    fixed_s = 0.0
    print(f"{'length':>8}{'open ms':>10}{'own ms':>10}{'speed':>8}")
    for length in lengths:
        own = Side(params, length)
        spans: dict[Side, list[float]] = {open_length: [], own: []}
        for number in range(rounds + 2):
            for side in spans:
                seconds = side.run(side.arrays(length, number))
                if number >= 2:  # caches are warm, and kernels compiled
                    spans[side].append(seconds)
        first, second = (1e3 * statistics.median(spans[side]) for side in (open_length, own))
        fixed_s += own.compile_s
        print(f"{length:>8}{first:>10.1f}{second:>10.1f}{second / first:>8.2f}", flush=True)
    print(
        f"open: {open_length.compiled} compilations for {len(lengths)} lengths, "
        f"{open_length.compile_s:.2f} CPU s; own: {len(lengths)}, {fixed_s:.2f} CPU s"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    text = f"params file of a BERT (default: that of {CONFIG})"
    parser.add_argument("--config", metavar="YAML", default=config_path(CONFIG), help=text)
    add = parser.add_argument
    text = "tokens of a record"
    add("--lengths", metavar="N", type=positive_int, nargs="+", default=LENGTHS, help=text)
    add("--rounds", metavar="N", type=positive_int, default=9, help="measurements of each length")


def run(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints the table."""
    from modelzoo.common.config.params import load_params

    measure(load_params(args.config), args.lengths, args.rounds)
