"""Fine-tunes Hugging Face folders that are larger than memory, to show what it takes.

For example LoRA on the shape of Llama 3.1 8B (16 GB of random bfloat16 weights, which are read from
their files in every step), and AdamW on all weights of the shapes of Llama 3.2 1B and GPT-2 XL::

    scripts/cerebras-tf bench pretrained lora8b --folder /data/demo
    scripts/cerebras-tf bench pretrained adamw1b --folder /data/demo --steps 2
    scripts/cerebras-tf bench pretrained gpt2xl --folder /data/demo --steps 2

Weights and tokens are random: memory, bytes moved and time are measured. Training runs in a process
of its own, in a control group with limited memory if the system allows that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Optional

import numpy as np

from benchmarks import command
from benchmarks.larger_than_memory import peak_gib
from cerebras_tf.api import TensorType, positive_int, positive_number, write_shards
from cerebras_tf.errors import CapacityError, CerebrasError, ConfigError

_CGROUPS = Path("/sys/fs/cgroup")
_POSITIONS = 1024  # of GPT-2
_POOL = 1 << 24  # random numbers that all weights are taken from


@dataclass(frozen=True)
class Case:
    """A model and how it is trained.

    Attributes:
        layers, hidden, inner, heads, key_heads, vocabulary: its shape. GPT-2 if key_heads is 0,
            otherwise Llama.
        tied: whether the output projection is the embedding.
        rank: of LoRA; 0 trains all weights by AdamW.
        rows: sequences of a step.
        length: tokens of a sequence.
        micro_batches: that a step is split into.
        memoryx_ram_gb: memory for weights and optimizer state.
        wafer_memory_gb: memory for activations.
        moments: dtype of AdamW's moments.
    """

    layers: int
    hidden: int
    inner: int
    heads: int
    key_heads: int
    vocabulary: int
    tied: bool
    rank: int
    rows: int
    length: int
    micro_batches: int
    memoryx_ram_gb: float
    wafer_memory_gb: float
    moments: Optional[str] = None

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.rows * self.length


CASES = {
    "lora8b": Case(32, 4096, 14336, 32, 8, 128256, False, 16, 2, 512, 1, 3.6, 2.6),
    "adamw1b": Case(16, 2048, 8192, 32, 8, 128256, True, 0, 8, 512, 1, 3.0, 3.0, "bfloat16"),
    "gpt2xl": Case(48, 1600, 6400, 25, 0, 50257, True, 0, 8, 512, 1, 3.0, 3.0, "bfloat16"),
}


def config_of(case: Case) -> dict[str, Any]:
    """The config.json of a model."""
    if not case.key_heads:
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "dtype": "bfloat16",
            "vocab_size": case.vocabulary,
            "n_embd": case.hidden,
            "n_inner": case.inner,
            "n_layer": case.layers,
            "n_head": case.heads,
            "n_positions": _POSITIONS,
        }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": case.vocabulary,
        "hidden_size": case.hidden,
        "intermediate_size": case.inner,
        "num_hidden_layers": case.layers,
        "num_attention_heads": case.heads,
        "num_key_value_heads": case.key_heads,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "tie_word_embeddings": case.tied,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def shapes_of(case: Case) -> dict[str, tuple[int, ...]]:
    """Shapes of all weights, by the names that transformers has."""
    return _llama_shapes(case) if case.key_heads else _gpt2_shapes(case)


def _gpt2_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    hidden = case.hidden
    found: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (case.vocabulary, hidden),
        "transformer.wpe.weight": (_POSITIONS, hidden),
    }
    for layer in range(case.layers):
        name = f"transformer.h.{layer}"
        for part, rows, columns in (
            ("attn.c_attn", hidden, 3 * hidden),
            ("attn.c_proj", hidden, hidden),
            ("mlp.c_fc", hidden, case.inner),
            ("mlp.c_proj", case.inner, hidden),
        ):
            found[f"{name}.{part}.weight"] = (rows, columns)
            found[f"{name}.{part}.bias"] = (columns,)
        for norm in ("ln_1", "ln_2"):
            found[f"{name}.{norm}.weight"] = found[f"{name}.{norm}.bias"] = (hidden,)
    found["transformer.ln_f.weight"] = found["transformer.ln_f.bias"] = (hidden,)
    return found


def _llama_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    hidden, keys = case.hidden, case.hidden // case.heads * case.key_heads
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (case.vocabulary, hidden)}
    for layer in range(case.layers):
        name = f"model.layers.{layer}"
        for part, rows in (("q", hidden), ("k", keys), ("v", keys), ("o", hidden)):
            found[f"{name}.self_attn.{part}_proj.weight"] = (rows, hidden)
        found[f"{name}.mlp.gate_proj.weight"] = (case.inner, hidden)
        found[f"{name}.mlp.up_proj.weight"] = (case.inner, hidden)
        found[f"{name}.mlp.down_proj.weight"] = (hidden, case.inner)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{name}.{norm}.weight"] = (hidden,)
    found["model.norm.weight"] = (hidden,)
    if not case.tied:
        found["lm_head.weight"] = (case.vocabulary, hidden)
    return found


def write_model(case: Case, folder: Path) -> None:
    """Writes a model of random bfloat16 weights."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    numbers = random.standard_normal(_POOL, np.float32) * np.float32(0.02)
    pool = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    one, zero = np.uint16(0x3F80), np.uint16(0)

    def weight(name: str, shape: tuple[int, ...]) -> Any:
        if len(shape) == 1:
            return np.full(shape, zero if name.endswith("bias") else one)
        return np.resize(np.roll(pool, int(random.integers(_POOL))), shape)

    shapes = shapes_of(case)
    types = {name: TensorType("bfloat16", shape) for name, shape in shapes.items()}
    write_shards(folder, types, ((name, weight(name, shape)) for name, shape in shapes.items()))
    (folder / "config.json").write_text(json.dumps(config_of(case)), encoding="utf-8")


def parameters_of(case: Case) -> int:
    """Number of weights."""
    return sum(math.prod(shape) for shape in shapes_of(case).values())


def flops_of(case: Case) -> float:
    """Operations of a step without recomputation.

    For a weight of a product and a token 4, or 6 if it is trained; 12 L S H a token for attention.
    """
    table = case.vocabulary * case.hidden
    weights = parameters_of(case) - (0 if case.tied else table)
    attention = 12 * case.layers * case.length * case.hidden
    return float(case.tokens * ((4 if case.rank else 6) * weights + attention))


def train(case: Case, folder: Path, steps: int, profile: bool) -> None:
    """Trains on random tokens; prints a line per step."""
    import torch

    from cerebras_tf.runtime.profiler import Profiler
    from cerebras_tf.torch_step.front_end import TorchModel
    from cerebras_tf.torch_step.lora import LoraSettings
    from cerebras_tf.torch_step.pretrained import PretrainedModel
    from cerebras_tf.torch_step.settings import TrainingSettings
    from cerebras_tf.torch_step.training import Reports, TorchTraining

    generator = torch.Generator().manual_seed(1)

    def batch() -> dict[str, torch.Tensor]:
        size = (case.rows, case.length)
        tokens = torch.randint(0, case.vocabulary, size, generator=generator)
        return {"input_ids": tokens, "labels": tokens}

    started = time.monotonic()
    pretrained = PretrainedModel(folder / "model")
    if case.rank:
        pretrained.add_lora(LoraSettings(rank=case.rank, alpha=2 * case.rank))
    optimizer = torch.optim.AdamW(pretrained.trained(), lr=1e-5)
    model = TorchModel(pretrained.module, batch(), optimizer, stored=pretrained.stored())
    settings = TrainingSettings(
        precision="bfloat16",
        memoryx_dir=str(folder / "memoryx"),
        memoryx_ram_gb=case.memoryx_ram_gb,
        memoryx_moment_dtype=case.moments,
        wafer_memory_gb=case.wafer_memory_gb,
        micro_batches=case.micro_batches,
    )
    profiler = Profiler() if profile else None
    reports = Reports(lambda line: print(line, flush=True), profiler=profiler)
    training = TorchTraining(model, settings, pretrained.weights(), reports=reports)
    print(training.prepare(batch()), flush=True)
    print(f"capturing and compiling: {time.monotonic() - started:.0f} s", flush=True)
    for number in range(1, steps + 1):
        io = replace(training.store.io_stats)
        started, cpu = time.monotonic(), time.process_time()
        loss = training.step(batch())["loss"]
        elapsed, now = time.monotonic() - started, training.store.io_stats
        read, written = now.bytes_read - io.bytes_read, now.bytes_written - io.bytes_written
        print(
            f"step {number}: loss {loss:.3f}, {elapsed:.1f} s, {time.process_time() - cpu:.1f} s "
            f"of processor time, {case.tokens / elapsed:.1f} tokens per second, "
            f"{flops_of(case) / elapsed / 1e9:.0f} GFLOP/s, {read / 1e9:.1f} GB read, "
            f"{written / 1e9:.1f} GB written, {(now.stalled_s - io.stalled_s) / elapsed:.0%} "
            "waiting for the disk",
            flush=True,
        )
    training.close()
    print(f"peak memory: {peak_gib():.2f} GiB", flush=True)


@contextlib.contextmanager
def limited(limit_gib: float) -> Iterator[Optional[Path]]:
    """A control group with this much memory: its file of processes; None where there is none."""
    old = (_CGROUPS / "memory" / "memory.limit_in_bytes").exists()
    folder = (_CGROUPS / "memory" if old else _CGROUPS) / f"cerebras_tf_{os.getpid()}"
    name = "memory.limit_in_bytes" if old else "memory.max"
    try:
        folder.mkdir()
        (folder / name).write_text(str(int(limit_gib * 2**30)))
    except OSError as error:
        print(f"memory is not limited: {error}", flush=True)
        yield None
        return
    try:
        yield folder / "cgroup.procs"
    finally:
        folder.rmdir()


def show(args: argparse.Namespace) -> None:
    """Writes the model, and trains it in another process."""
    given = {"layers": args.layers, "rows": args.rows, "length": args.length}
    given |= {"micro_batches": args.micro_batches, "memoryx_ram_gb": args.memoryx_ram_gb}
    given |= {"wafer_memory_gb": args.wafer_memory_gb}
    case = replace(CASES[args.model], **{key: v for key, v in given.items() if v is not None})
    folder = Path(args.folder)
    size = parameters_of(case)
    needed = 2 * size + (0 if case.rank else size * (8 if case.moments else 12))
    folder.mkdir(parents=True, exist_ok=True)
    free, exists = shutil.disk_usage(folder).free, (folder / "model").exists()
    print(
        f"{args.model}: {size / 1e9:.2f} billion weights, {case.tokens} tokens and "
        f"{flops_of(case) / 1e12:.1f} TFLOP per step, {needed / 1e9:.1f} GB of disk, "
        f"{free / 1e9:.1f} free",
        flush=True,
    )
    if needed > free + (2 * size if exists else 0):
        raise CapacityError(
            f"--folder {folder}: {needed / 1e9:.1f} GB must be free. Received: {free / 1e9:.1f} "
            "GB. Use a folder on a larger disk, or fewer --layers."
        )
    if exists and not args.keep:
        raise ConfigError(
            f"--folder {folder}: model is made there, and removed. Received: a folder with one "
            "already. Use another folder, or --keep to use and keep that."
        )
    try:
        if not exists:
            write_model(case, folder / "model")
        text = json.dumps({"case": asdict(case), "steps": args.steps, "profile": args.profile})
        child = command("pretrained", "--stage", text, "--folder", str(folder))
        with limited(args.limit_gib) as group:

            def enter() -> None:
                if group is not None:
                    group.write_text(str(os.getpid()))

            done = subprocess.run(child, check=False, preexec_fn=enter)
        if done.returncode:
            raise CerebrasError(
                f"pretrained: training must succeed within {args.limit_gib:g} GiB. Received: exit "
                f"code {done.returncode}. Its message is above."
            )
    finally:
        shutil.rmtree(folder / "memoryx", ignore_errors=True)
        if not args.keep:
            shutil.rmtree(folder / "model", ignore_errors=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add = parser.add_argument
    add("model", nargs="?", choices=tuple(CASES), default="lora8b", help="what to train")
    add("--folder", default="pretrained", help="folder for all files (default: %(default)s)")
    add("--steps", type=positive_int, default=3, metavar="N", help="training steps")
    add("--limit_gib", type=positive_number, default=8.0, metavar="N", help="memory, GiB")
    for name in ("layers", "rows", "length", "micro_batches"):
        text = f"{name.replace('_', ' ')} (default: depends on the model)"
        add(f"--{name}", type=positive_int, metavar="N", help=text)
    for name in ("memoryx_ram_gb", "wafer_memory_gb"):
        text = "see the settings of training (default: depends on the model)"
        add(f"--{name}", type=positive_number, metavar="N", help=text)
    add("--profile", action="store_true", help="write a profile to the folder")
    add("--keep", action="store_true", help="keep the model's folder, and use it if it is there")
    add("--stage", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> None:
    """Runs the command, or its training."""
    if args.stage is None:
        show(args)
        return
    given = json.loads(args.stage)
    train(Case(**given["case"]), Path(args.folder), given["steps"], given["profile"])
