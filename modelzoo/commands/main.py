"""The `cerebras-tf` program and its commands."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import cerebras_tf
import modelzoo
from cerebras_tf.api import USER_ERROR, Parser, format_rows, run_main
from cerebras_tf.errors import ConfigError
from modelzoo.common.train.arguments import COMPILE, MODES
from modelzoo.common.train.console import quiet_native_logging
from modelzoo.common.train.file_errors import system_errors_named

PROGRAM = "cerebras-tf"
OUTPUTS = ("output_dir", "output", "out", "outputs", "save", "folder", "model_dir")


@dataclass(frozen=True)
class Command:
    """A command, or a group of commands.

    Attributes:
        module: what offers `add_arguments(parser, **given)` and `run(args)` -> exit code or None.
            Only that of the command asked for is imported, because some import TensorFlow.
        given: keyword arguments of `add_arguments`, for modules with several commands.
        default: of a group, the command that runs where only options are given.
    """

    summary: str
    module: str = ""
    given: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, Command] = field(default_factory=dict)
    default: str = ""


def of_module(name: str, key: str, summaries: Mapping[str, str]) -> dict[str, Command]:
    """Several commands of one module, which gets each one's name by `key`."""
    return {each: Command(text, name, {key: each}) for each, text in summaries.items()}


PREPARE = of_module(
    "modelzoo.commands.prepare",
    "kind",
    {
        "gpt": "records of GPT-2, GPT-3 and GPT-J, from text and JSON lines",
        "bert": "records of BERT pre-training, from text and JSON lines",
        "glue": "records of sentence classification, from GLUE's tab-separated files",
        "ner": "records of token classification, from BLURB or CoNLL files",
        "squad": "records of question answering, from the files of SQuAD 1.1 or 2.0",
        "bertsum": "records of extractive summarization (BERTSUM), from CNN/DailyMail",
        "summarization": "records that fine-tune GPT-J for summarization, from CNN/DailyMail",
        "translation": "records of the encoder-decoder, from two texts line by line",
        "chat": "records of conversations for a transformers model, from JSON lines",
        "vocab": "a vocabulary, from text: byte-level BPE, WordPiece, BPE or unigram",
    },
)
CONVERT = of_module(
    "modelzoo.commands.convert",
    "what",
    {
        "to_tf": "convert a model to a TensorFlow checkpoint and params.yaml",
        "from_tf": "convert a checkpoint to a model of another program",
        "verify": "compare a model and a checkpoint bit for bit; exit code 2 if they differ",
        "renumber": "copy a checkpoint with another step number",
        "random": "make a Hugging Face model with random weights",
    },
)
CONVERT["export"] = Command(
    "write a Hugging Face model, or an adapter of peft, from a run of one",
    "modelzoo.commands.export",
)
CONFIGS = of_module(
    "modelzoo.commands.configs",
    "what",
    {"list": "list the included params files", "copy": "copy params files"},
)
SCALING = of_module(
    "modelzoo.commands.scaling",
    "what",
    {
        "family": "train a family of small models on the included text, and fit a scaling law",
        "fit": "fit a scaling law to runs of language models",
        "plan": "plan a training run for a budget of FLOP or days",
    },
)
CREDENTIALS = of_module(
    "cerebras_tf.cli.serve", "what", {"new": "make the credentials of a server and its clients"}
)
BENCHMARKS = {
    name: Command(summary, f"benchmarks.{name}")
    for name, summary in {
        "training": "measure training on the wafer and on the host",
        "compile_time": "measure compile time by model depth",
        "lengths": "compare one program for all lengths with one program per length",
        "memory": "measure the memory of training from files by model depth",
        "scale": "predict the step time on many wafers, and measure it on a few",
        "larger_than_memory": "train models that are larger than memory",
        "pretrained": "fine-tune Hugging Face models that are larger than memory",
        "address": "measure steps and transfers of a server on this computer",
        "nanogpt": "train a GPT on characters, on the wafer and by PyTorch",
    }.items()
}
COMPILING = {COMPILE: "compile a model without running it"}
ROOT = Command(
    "Train TensorFlow estimators on an emulated wafer.",
    commands={
        **of_module("modelzoo.commands.run_model", "command", {**MODES, **COMPILING}),
        "generate": Command(
            "continue prompts with a trained language model, on the console",
            "modelzoo.commands.generate",
        ),
        "configs": Command("list or copy the included params files", commands=CONFIGS),
        "prepare": Command("make records or a vocabulary from raw data", commands=PREPARE),
        "convert": Command(
            "convert checkpoints of Hugging Face and Google's BERT, and back", commands=CONVERT
        ),
        "zero_shot": Command(
            "evaluate a language model on tasks without training on them",
            "modelzoo.commands.zero_shot",
        ),
        "run": Command(
            "run a compiled program on a batch, without TensorFlow", "cerebras_tf.cli.run_program"
        ),
        "report": Command(
            "predict the speed of a transformer on a CS-2 from its sizes",
            "modelzoo.commands.report",
        ),
        "compare": Command("compare compile reports", "cerebras_tf.cli.compare"),
        "tensorboard": Command(
            "show the charts of runs in TensorBoard", "modelzoo.commands.tensorboard"
        ),
        "scaling": Command("fit scaling laws and plan training runs", commands=SCALING),
        "bench": Command(
            "run a benchmark (only in a checkout)", commands=BENCHMARKS, default="training"
        ),
        "python": Command(
            "run a script with tf.estimator, on any TensorFlow", "cerebras_tf.cli.run_script"
        ),
        "serve": Command(
            "serve the wafer of this computer to others", "cerebras_tf.cli.serve", {"what": "serve"}
        ),
        "credentials": Command(
            "make the credentials for `serve` and its clients", commands=CREDENTIALS
        ),
        "bundle": Command(
            "download the packages for a set-up without internet", "modelzoo.commands.bundle"
        ),
        "info": Command(
            "show versions, cores, memory, BLAS and kernel cache", "cerebras_tf.cli.info"
        ),
    },
)


def sentence(summary: str) -> str:
    """A summary as the description of its command."""
    return f"{summary[0].upper()}{summary[1:].rstrip('.')}."


def choose(argv: Sequence[str], program: str, group: Command) -> str:
    """Returns the name of the command that `argv` begins with; help and mistakes end here."""
    rows = {name: command.summary for name, command in group.commands.items()}
    parser = Parser(
        prog=program,
        description=sentence(group.summary),
        usage=f"{program} COMMAND [ARGUMENTS]",
        epilog=f"commands:\n{format_rows(rows)}\n\n{program} COMMAND -h shows its arguments.",
    )
    if group is ROOT:
        version = f"{PROGRAM} {cerebras_tf.__version__}"
        parser.add_argument("--version", action="version", version=version)
    parser.add_argument("command", choices=tuple(rows), metavar="COMMAND", help="see below")
    if group.default and (not argv or argv[0][:1] == "-" and argv[0] not in ("-h", "--help")):
        return group.default
    if not argv:
        parser.print_help(sys.stderr)
        raise SystemExit(USER_ERROR)
    return str(parser.parse_args(argv[:1]).command)


def load(name: str) -> Any:
    """Imports the module of a command."""
    if name.startswith("benchmarks."):
        checkout = Path(modelzoo.__file__).parents[1]
        if not (checkout / "benchmarks" / "__init__.py").exists():
            raise ConfigError(
                f"{PROGRAM} bench: must be run in a checkout of the source, which contains the "
                f"benchmarks. Received: a package installed in {checkout}. Clone the repository "
                "and run scripts/cerebras-tf bench in it."
            )
        if str(checkout) not in sys.path:
            sys.path.append(str(checkout))
    return importlib.import_module(name)


def run_command(argv: Sequence[str]) -> Optional[int]:
    """Parses `argv` and runs the command that it names."""
    quiet_native_logging()
    command, program = ROOT, PROGRAM
    while command.commands:
        name = choose(argv, program, command)
        argv = argv[1:] if argv and argv[0] == name else argv
        command, program = command.commands[name], f"{program} {name}"
    module = load(command.module)
    parser = Parser(prog=program, description=sentence(command.summary))
    module.add_arguments(parser, **command.given)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    # Of a command that starts another program, the rest of the line belongs to that program.
    own, rest = module.split(argv) if hasattr(module, "split") else (argv, [])
    args = parser.parse_args(own)
    args.rest = rest
    places = (getattr(args, name, None) for name in OUTPUTS)
    with system_errors_named(next(filter(None, places), program)):
        exit_code: Optional[int] = module.run(args)
    return exit_code


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the program and returns its exit code; see exit_codes.run_main."""
    return run_main(run_command, argv, PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
