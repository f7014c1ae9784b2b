"""Converts checkpoints between Hugging Face, Google's BERT and TensorFlow, and compares them.

For example::

    python scripts/convert_checkpoint.py to_tf EleutherAI/gpt-j-6B model_dir/gptj_6b
    python scripts/convert_checkpoint.py from_tf model_dir/gptj_6b gpt-j-6B-trained
    python scripts/convert_checkpoint.py verify gpt-j-6B-trained model_dir/gptj_6b --logits
    python scripts/convert_checkpoint.py renumber model_dir/first model_dir/second 38000

It deliberately only reads its arguments and shows progress; ``modelzoo/common/checkpoints`` does
the work.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cerebras_tf.cli.arguments import positive_int
from cerebras_tf.cli.exit_codes import run_main
from cerebras_tf.errors import ConfigError
from modelzoo.common.checkpoints.compare_logits import TOLERANCE, compare_logits
from modelzoo.common.checkpoints.convert import from_tensorflow, to_tensorflow
from modelzoo.common.checkpoints.programs import PROGRAMS
from modelzoo.common.checkpoints.renumber import renumber
from modelzoo.common.checkpoints.safetensors_file import DTYPES
from modelzoo.common.checkpoints.verify import verify_weights
from modelzoo.common.console import quiet_native_logging


def parse_arguments(argv):
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    to_tf = commands.add_parser("to_tf", help="make a TensorFlow checkpoint and its params.yaml")
    to_tf.add_argument("source", help="folder of the model; of Google's BERT also its prefix")
    to_tf.add_argument("output", help="folder of the checkpoint")
    from_tf = commands.add_parser("from_tf", help="make the other program's model")
    from_tf.add_argument("source", help="prefix of the checkpoint, or folder: its latest")
    from_tf.add_argument("output", help="folder of the model")
    verify = commands.add_parser("verify", help="compare both, bit for bit; exit code 2 if not so")
    verify.add_argument("source", help="folder of the other program's model")
    verify.add_argument("checkpoint", help="prefix of the TensorFlow checkpoint, or folder")
    verify.add_argument("--logits", action="store_true", help="also run both, on random tokens")
    copy = commands.add_parser("renumber", help="copy a checkpoint as that of another step")
    copy.add_argument("source", help="prefix of the checkpoint, or folder: its latest")
    copy.add_argument("output", help="folder in which training goes on")
    copy.add_argument("step", type=positive_int, help="its global step")
    for command in (to_tf, from_tf, verify):
        add = command.add_argument
        add("--program", choices=tuple(PROGRAMS), default="hugging_face", help="the other program")
    for command in (to_tf, from_tf, verify, copy):
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    for command in (to_tf, from_tf, copy):
        command.add_argument("--overwrite", action="store_true", help="replace what is there")
    for command in (from_tf, verify):
        add = command.add_argument
        add("-p", "--params", help="our YAML (default: params.yaml beside the checkpoint)")
        add("--dtype", choices=tuple(DTYPES), default="float32", help="type of weights there")
    from_tf.add_argument(
        "--config_from",
        metavar="FOLDER",
        help="model it began as, for token ids and generation (default: beside the checkpoint)",
    )
    from_tf.add_argument("--max_shard_gb", type=float, default=5.0, help="size of a file, GB")
    return parser.parse_args(argv)


def prepare_tensorflow():
    """Sets what TensorFlow reads when it is imported: fewer lines, and less memory.

    The pool of oneDNN keeps what was given back to it, several times the largest tensor.
    """
    quiet_native_logging()
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


def main(argv):
    """Runs a command."""
    import tqdm

    prepare_tensorflow()
    args = parse_arguments(argv)
    if args.command == "renumber":
        print(f"{renumber(args.source, args.output, args.step, args.overwrite)}: as {args.source}.")
        return
    started = time.monotonic()
    with tqdm.tqdm(unit=" weights", unit_scale=True, disable=None) as bar:
        lines = COMMANDS[args.command](args, bar.update)
    print(f"{lines} ({time.monotonic() - started:.1f} s)")


def convert_to_tf(args, advance):
    """Makes a TensorFlow checkpoint; returns what to print."""
    done = to_tensorflow(args.source, args.output, args.program, args.overwrite, advance=advance)
    note = f" Train from it with --checkpoint_path {done.path} and another model_dir."
    return _told(done) + note


def convert_from_tf(args, advance):
    """Makes the other program's model; returns what to print."""
    done = from_tensorflow(
        args.source,
        args.output,
        args.program,
        args.params,
        args.config_from,
        args.dtype,
        int(args.max_shard_gb * 1e9),
        args.overwrite,
        advance,
    )
    return _told(done)


def _told(done):
    text = f"{done.tensors} tensors, {done.weights} weights: {done.path}."
    if done.dropped:
        text += f" Left out: {len(done.dropped)} tensors that its outputs do not need, such as "
        text += f"{done.dropped[0]}."
    return text


def verify_both(args, advance):
    """Compares the two; returns what to print."""
    if args.logits and args.program != "hugging_face":
        raise ConfigError(
            f"--logits: needs --program hugging_face. Received: {args.program}. Convert the "
            "checkpoint to Hugging Face's form and compare with that."
        )
    count = verify_weights(
        args.source, args.checkpoint, args.program, args.dtype, advance, args.params
    )
    text = f"{count} weights are equal bit for bit."
    if args.logits:
        largest = compare_logits(args.source, args.checkpoint, args.params)
        values = ", ".join(f"{name} by {value:.2g}" for name, value in largest.items())
        text += f" Outputs differ by at most {TOLERANCE:g}: {values}."
    return text


COMMANDS = {"to_tf": convert_to_tf, "from_tf": convert_from_tf, "verify": verify_both}

if __name__ == "__main__":
    sys.exit(run_main(main))
