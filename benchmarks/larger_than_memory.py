"""Trains models larger than memory, to show that it works and what it takes.

For example, GPT-3 2.7B with 32 GB of weights and optimizer state, and GPT-J 6B converted from
Hugging Face's layout (random weights where no model is given)::

    scripts/cerebras-tf bench larger_than_memory gpt3 --folder /data/demo
    scripts/cerebras-tf bench larger_than_memory gptj --folder /data/demo --source gpt-j-6b
    scripts/cerebras-tf bench larger_than_memory gptj --check

The tokens are random: memory, bytes moved and time are measured. Every stage runs in its own
process, so that its peak memory is its own. The output is also written to the folder's log.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from benchmarks import command
from benchmarks.memory import status_bytes
from cerebras_tf.api import positive_int
from cerebras_tf.errors import CapacityError, CerebrasError, ConfigError
from modelzoo.commands.configs import config_folder

LOG = "larger_than_memory.log"
_STAGES = ("random", "convert", "train", "generate")
_PLANNED = re.compile(r"a step reads ([\d.]+) (GB|MB) and writes ([\d.]+) (GB|MB)")
_MOVED = re.compile(r"memoryx: ([\d.e+]+) GB read, ([\d.e+]+) GB written per step")
_PEAK = re.compile(r"peak memory: ([\d.]+) GiB")


@dataclass(frozen=True)
class Case:
    """A model to show.

    Attributes:
        config: name of its params file.
        sequence: tokens of the one sequence of a step.
        steps: of training.
        settings: keys of the params file that have other values.
        limit_gib: the most memory that training may take, else the command fails.
        tokens: that are generated afterwards.
    """

    config: str
    sequence: int
    steps: int
    settings: dict[str, Any]
    limit_gib: float
    tokens: int = 0


CASES = {
    "gpt3": Case(
        "params_gpt3_2p7b_pile.yaml",
        sequence=2048,
        steps=3,
        settings={"runconfig.memoryx_ram_gb": 2.2, "runconfig.wafer_memory_gb": 2.6},
        limit_gib=8.0,
    ),
    # No norm of all gradients and no dynamic loss scale: both would stage 24 GB of gradients.
    "gptj": Case(
        "params_gptj_6b.yaml",
        sequence=512,
        steps=2,
        settings={
            "runconfig.memoryx_ram_gb": 4.0,
            "runconfig.wafer_memory_gb": 2.8,
            "runconfig.memoryx_moment_dtype": "bfloat16",
            "runconfig.restore_partially": True,
            "optimizer.max_gradient_norm": 0.0,
            "optimizer.loss_scaling_factor": 1.0,
            "optimizer.max_loss_scale": 2.0**15,  # the default: it is of dynamic scales
            "optimizer.log_summaries": False,
        },
        limit_gib=10.0,
        tokens=10,
    ),
}


def read_params(case: Case, folder: Path, model: Optional[dict[str, Any]] = None) -> Any:
    """Parameters of a case, its folders below one; `model` changes the model's sizes."""
    from modelzoo.common.config.params import load_params

    name = case.config.removeprefix("params_").removesuffix(".yaml")
    settings = {
        "train_input.batch_size": 1,
        "train_input.max_sequence_length": case.sequence,
        "runconfig.num_csx": 1,
        "runconfig.mode": "train",
        "runconfig.model_dir": str(folder / name),
        "runconfig.memoryx_dir": str(folder / "memoryx"),
        "runconfig.tf_random_seed": 1,
        "runconfig.log_step_count_steps": 1,
        **case.settings,
        **(model or {}),
    }
    return load_params(config_folder() / case.config, settings)


@dataclass(frozen=True)
class Sizes:
    """Bytes of a model.

    Attributes:
        weights: of float32 weights.
        moments: of both moments as they are stored.
        staged: of gradients that wait for something global.
    """

    weights: int
    moments: int
    staged: int

    @property
    def state(self) -> int:
        """Bytes that are stored in files between steps."""
        return self.weights + self.moments


def sizes_of(params: Any) -> Sizes:
    """Bytes of a GPT's weights and what training adds to them."""
    weights = 4 * parameters_of(params)
    optimizer = params.optimizer
    halved = params.runconfig.memoryx_moment_dtype is not None
    waits = optimizer.max_gradient_norm or optimizer.loss_scaling_factor == "dynamic"
    return Sizes(weights, weights if halved else 2 * weights, weights if waits else 0)


def parameters_of(params: Any) -> int:
    """Number of weights of a GPT's matrices and embeddings; others are below a thousandth."""
    model, vocabulary = params.model, params.train_input.vocab_size
    hidden, inner = model.hidden_size, model.filter_size
    blocks = model.num_hidden_layers * (4 * hidden + 2 * inner) * hidden
    tables = 1 if model.share_embedding_weights else 2
    positions = 0 if hasattr(model, "rotary_dim") else params.train_input.max_sequence_length
    return int(blocks + (tables * vocabulary + positions) * hidden)


def flops_of(params: Any) -> float:
    """Operations of a training step without what is computed twice.

    6 a weight of a product and token, and 12 L S H a token for attention: Narayanan et al.,
    Efficient Large-Scale Language Model Training on GPU Clusters, 2021, appendix.
    """
    model, tokens = params.model, params.train_input.max_sequence_length
    hidden, layers = model.hidden_size, model.num_hidden_layers
    weights = layers * (4 * hidden + 2 * model.filter_size) * hidden
    weights += params.train_input.vocab_size * hidden
    return float(6.0 * tokens * weights + 12.0 * layers * tokens * tokens * hidden)


def disk_needed(sizes: Sizes, converts: bool) -> dict[str, float]:
    """Bytes of disk that a case needs, by what takes them."""
    needed: dict[str, float] = {"weights": sizes.weights, "moments": sizes.moments}
    if sizes.staged:
        needed["gradients that wait for their norm"] = sizes.staged
    if converts:  # weights of the checkpoint go as training replaces them; its files are of 1 GB
        needed["files in transit"] = 2e9
    return needed


def check_disk(folder: Path, needed: dict[str, float]) -> None:
    """Prints the arithmetic; raises CapacityError where the disk is too small."""
    folder.mkdir(parents=True, exist_ok=True)
    free, total = shutil.disk_usage(folder).free, sum(needed.values())
    terms = " + ".join(f"{size / 1e9:.1f} {what}" for what, size in needed.items())
    print(f"disk, GB: {terms} = {total / 1e9:.1f}; {free / 1e9:.1f} free in {folder}")
    print("activations that do not fit in memory come on top, as logged before step 1", flush=True)
    if total > free:
        raise CapacityError(
            f"--folder {folder}: {total / 1e9:.1f} GB must be free. Received: {free / 1e9:.1f} GB. "
            "Use a folder on a larger disk, or try fewer --layers."
        )


@dataclass
class Outcome:
    """The output of a stage, from which `report` reads figures."""

    lines: list[str] = field(default_factory=list)

    def numbers(self, pattern: re.Pattern[str]) -> Optional[tuple[str, ...]]:
        """Groups of the last line that matches, None without one."""
        found = [match.groups() for line in self.lines if (match := pattern.search(line))]
        return found[-1] if found else None


def run_stage(stage: str, given: dict[str, Any], log: Path) -> Outcome:
    """Runs a stage in its own process; prints and logs its output.

    Raises:
        CerebrasError: it failed.
    """
    child = command("larger_than_memory", "--stage", stage, "--given", json.dumps(given))
    outcome = Outcome()
    started = time.monotonic()
    with (
        open(log, "a", encoding="utf-8") as file,
        subprocess.Popen(
            child, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            outcome.lines.append(line.rstrip())
            print(line, end="", flush=True)
            file.write(line)
            file.flush()
    if process.returncode:
        raise CerebrasError(
            f"larger_than_memory: its stage {stage} must succeed. Received: exit code "
            f"{process.returncode}. Its message is above and in {log}."
        )
    print(f"{stage}: {time.monotonic() - started:.0f} s", flush=True)
    return outcome


def report(case: Case, outcome: Outcome) -> None:
    """Prints what was planned next to what was measured.

    Raises:
        CapacityError: training took more memory than it may.
    """
    planned, moved = outcome.numbers(_PLANNED), outcome.numbers(_MOVED)
    if planned and moved:
        wanted = [float(planned[i]) * (1.0 if planned[i + 1] == "GB" else 1e-3) for i in (0, 2)]
        for what, plan, found in zip(("read", "written"), wanted, map(float, moved)):
            share = found / plan - 1 if plan else 0.0
            print(f"{what} a step: planned {plan:.2f} GB, measured {found:.2f} GB ({share:+.1%})")
    peak = outcome.numbers(_PEAK)
    if peak:
        print(f"peak memory of training: {peak[0]} GiB (limit {case.limit_gib:g} GiB)", flush=True)
        if float(peak[0]) > case.limit_gib:
            raise CapacityError(
                f"larger_than_memory: training must take at most {case.limit_gib:g} GiB. Received: "
                f"{peak[0]} GiB. The plan is above and in {LOG}; report both."
            )


# Stages; each runs in its own process.


def train(case: Case, folder: Path, given: dict[str, Any]) -> None:
    """Trains some steps, and writes one checkpoint, at the end."""
    from benchmarks.larger_than_memory_parts import train_steps

    train_steps(read_params(case, folder, given["model"]), given["steps"], given["replaces"])


def generate(case: Case, folder: Path, given: dict[str, Any]) -> None:
    """Generates some tokens."""
    from benchmarks.larger_than_memory_parts import generate_tokens

    generate_tokens(read_params(case, folder, given["model"]), case.tokens)


def random(case: Case, folder: Path, given: dict[str, Any]) -> None:
    """Writes the model of random weights that is converted."""
    from benchmarks.larger_than_memory_parts import write_random

    write_random(read_params(case, folder, given["model"]), given["source"])


def convert(case: Case, folder: Path, given: dict[str, Any]) -> None:
    """Converts a model of Hugging Face's into the checkpoint that training continues from."""
    from modelzoo.common.convert.convert import to_tensorflow

    model_dir = read_params(case, folder, given["model"]).runconfig.model_dir
    done = to_tensorflow(given["source"], model_dir)
    if given["delete_source"]:  # training takes its disk space
        shutil.rmtree(given["source"])
    print(f"converted {done.weights:,} weights: {done.path}")


def peak_gib() -> float:
    """The most main memory that this process had at once."""
    return status_bytes("VmHWM") / 2**30


def check_given(args: argparse.Namespace, layers: int) -> None:
    """Raises ConfigError where arguments do not fit the model, which has so many layers."""
    if args.source and args.model != "gptj":
        raise ConfigError(
            f"--source: needs gptj, which is converted. Received: {args.model}, whose training "
            "starts from random weights. Remove it."
        )
    if args.layers and args.layers > layers:
        raise ConfigError(
            f"--layers: must be at most the {layers} of {args.model}. Received: {args.layers}. Use "
            "fewer, or remove it."
        )


def show(args: argparse.Namespace) -> None:
    """Runs all stages of a case."""
    case, folder = CASES[args.model], Path(args.folder)
    converts = args.model == "gptj"
    check_given(args, read_params(case, folder).model.num_hidden_layers)
    model = {"model.num_hidden_layers": args.layers} if args.layers else {}
    params = read_params(case, folder, model)
    sizes = sizes_of(params)
    print(
        f"{args.model}: {parameters_of(params) / 1e9:.2f} billion weights, {sizes.state / 1e9:.1f} "
        f"GB with both moments; {case.sequence} tokens per step, {flops_of(params) / 1e12:.1f} "
        "TFLOP"
    )
    check_disk(folder, disk_needed(sizes, converts))
    if args.check:
        return
    log = folder / LOG
    trained, made = Path(params.runconfig.model_dir), [folder / "memoryx", folder / "random_source"]
    for path in (trained, *made):
        if path.exists():
            raise ConfigError(
                f"--folder {folder}: {path.name} is made there, and removed. Received: a folder "
                "with one already. Use another folder, or remove that."
            )
    steps = args.steps or case.steps
    given = {
        "case": args.model,
        "folder": str(folder),
        "model": model,
        "steps": steps,
        "source": args.source or str(folder / "random_source"),
        "delete_source": not args.source,  # another's stays
        "replaces": converts,
    }
    try:
        if converts and not args.source:
            run_stage("random", given, log)
        if converts:
            run_stage("convert", given, log)
        outcome = run_stage("train", given, log)
        if case.tokens:
            run_stage("generate", given, log)
        report(case, outcome)
    finally:
        for path in made if args.keep else (trained, *made):
            shutil.rmtree(path, ignore_errors=True)
    print(f"the log: {log}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add = parser.add_argument
    add(
        "model",
        nargs="?",
        choices=tuple(CASES),
        default="gpt3",
        help="model to train (default: gpt3)",
    )
    add(
        "--folder", default="larger_than_memory", help="folder for all files (default: %(default)s)"
    )
    add("--check", action="store_true", help="only print the required disk space")
    add(
        "--steps",
        type=positive_int,
        metavar="N",
        help="number of training steps (default: depends on the model)",
    )
    add(
        "--layers", type=positive_int, metavar="N", help="number of layers, to need less disk space"
    )
    add(
        "--source",
        metavar="FOLDER",
        help="gptj: folder of a Hugging Face model (default: random weights)",
    )
    add("--keep", action="store_true", help="keep the trained model")
    add("--stage", choices=_STAGES, help=argparse.SUPPRESS)
    add("--given", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> None:
    """Runs the command, or one stage of it."""
    if args.stage is None:
        show(args)
        return
    given = json.loads(args.given)
    stages = {"train": train, "generate": generate, "random": random, "convert": convert}
    stages[args.stage](CASES[given["case"]], Path(given["folder"]), given)
    print(f"{args.stage}: peak memory: {peak_gib():.2f} GiB", flush=True)
