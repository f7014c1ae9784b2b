"""Trains a small GPT on characters to the end, on the wafer and by PyTorch, in alternating turns.

The sizes and settings are those that nanoGPT publishes for CPUs (its README, "i only have a
macbook"): 4 layers, 4 heads, width 128, 64 characters, batches of 12, 2,000 iterations, no dropout.
All sides have the same initial weights and batches. Evaluation is not timed.

    scripts/cerebras-tf bench nanogpt --text input.txt

The text can be any; nanoGPT uses the works of Shakespeare, 1.1 MB.

Letters: B sequences, S their length, H width, V characters.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import time
from pathlib import Path
from statistics import median
from typing import Any

from cerebras_tf.api import positive_int
from cerebras_tf.errors import DataError

LAYERS, HEADS, WIDTH, LENGTH, BATCH = 4, 4, 128, 64, 12
ITERATIONS, WARM_UP, RATE, LEAST_RATE, EVALUATED = 2000, 100, 1e-3, 1e-4, 40
WAFER, EAGER, COMPILED = "wafer", "torch", "torch compile"
SIDES = (WAFER, EAGER, COMPILED)


def read_text(path: str) -> tuple[Any, Any, int]:
    """Characters as numbers: the first 90 % to train with, the rest to evaluate with; and V.

    Raises:
        DataError: the file does not exist, or its parts are shorter than a sequence.
    """
    import numpy as np

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise DataError(f"--text {path}: must be a text file in UTF-8. {error}.") from error
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    ids = np.array([numbers[character] for character in text], np.int64)
    first = len(ids) * 9 // 10
    if len(ids) - first <= LENGTH:
        raise DataError(
            f"--text {path}: must have more than {10 * LENGTH} characters. Received: {len(ids)}. "
            "Use a longer text."
        )
    return ids[:first], ids[first:], len(numbers)


def make_model(characters: int) -> Any:
    """A GPT without biases, whose output layer is its embedding."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        """Attention and feed-forward, each after a norm."""

        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, bias=False) for _ in range(2))
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
            self.out = nn.Linear(WIDTH, WIDTH, bias=False)
            self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
            self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

        def forward(self, x: Any) -> Any:
            """x [B, S, H]."""
            parts = self.qkv(self.norms[0](x)).split(WIDTH, dim=2)
            q, k, v = (p.unflatten(2, (HEADS, -1)).transpose(1, 2) for p in parts)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).flatten(2))
            return x + self.down(functional.gelu(self.up(self.norms[1](x))))

    class Model(nn.Module):
        """Returns the mean loss of the next characters."""

        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(characters, WIDTH)
            self.places = nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm = nn.LayerNorm(WIDTH, bias=False)
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    last = name.endswith(("out.weight", "down.weight"))
                    std = 0.02 / math.sqrt(2 * LAYERS) if last else 0.02
                    nn.init.normal_(parameter, std=std)

        def forward(self, ids: Any, labels: Any) -> Any:
            """ids and labels [B, S]."""
            x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            logits = self.norm(x) @ self.words.weight.t()
            return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    torch.manual_seed(1337)
    return Model()


def make_optimizer(model: Any) -> Any:
    """AdamW; matrices decay."""
    import torch

    groups = [
        {"params": [p for p in model.parameters() if (p.dim() >= 2) == decays], "weight_decay": w}
        for decays, w in ((True, 0.1), (False, 0.0))
    ]
    return torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.99), fused=True)


def rate_at(step: int) -> float:
    """A linear warm-up, then half a cosine."""
    if step < WARM_UP:
        return RATE * (step + 1) / (WARM_UP + 1)
    done = (step - WARM_UP) / (ITERATIONS - WARM_UP)
    return LEAST_RATE + 0.5 * (1 + math.cos(math.pi * done)) * (RATE - LEAST_RATE)


class Batches:
    """Random pieces of a text, the same for every side."""

    def __init__(self, ids: Any, seed: int) -> None:
        import torch

        self._ids = torch.from_numpy(ids)
        self._generator = torch.Generator().manual_seed(seed)

    def next(self) -> dict[str, Any]:
        """ids and labels [B, S]."""
        import torch

        last = len(self._ids) - LENGTH
        starts = torch.randint(last, (BATCH,), generator=self._generator).tolist()
        return {
            name: torch.stack([self._ids[s + after : s + after + LENGTH] for s in starts])
            for name, after in (("ids", 0), ("labels", 1))
        }


class TorchSide:
    """Trains by PyTorch, as nanoGPT does."""

    def __init__(self, characters: int, compiled: bool) -> None:
        import torch

        self._model = make_model(characters)
        self._optimizer = make_optimizer(self._model)
        self._loss = torch.compile(self._model) if compiled else self._model

    def step(self, batch: dict[str, Any], rate: float) -> None:
        """One update."""
        import torch

        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._loss(**batch).backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def model(self) -> Any:
        """The trained model."""
        return self._model


class WaferSide:
    """Trains the same model on the wafer."""

    def __init__(self, characters: int, example: dict[str, Any]) -> None:
        import torch

        from cerebras_tf.api import TorchModel, TorchTraining

        self._model = model = make_model(characters)
        self._optimizer = make_optimizer(model)

        def update() -> None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            self._optimizer.step()

        captured = TorchModel(model, example, self._optimizer, update=update)
        self._training = TorchTraining(captured)

    def step(self, batch: dict[str, Any], rate: float) -> None:
        """One update."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._training.step(batch)

    def model(self) -> Any:
        """The trained model."""
        self._training.copy_back()
        return self._model


def validation_loss(model: Any, ids: Any) -> float:
    """Mean loss of some batches."""
    import torch

    batches = Batches(ids, 1)
    with torch.no_grad():
        return median([float(model(**batches.next())) for _ in range(EVALUATED)])


def run_side(pipe: Any, side: str, text: str) -> None:
    """A side's process: seconds of as many steps as it receives; then of 0 the validation loss."""
    import torch

    torch.set_num_threads(multiprocessing.cpu_count())
    train, validation, characters = read_text(text)
    batches, step = Batches(train, 0), 0
    if side == WAFER:
        own: Any = WaferSide(characters, Batches(train, 0).next())
    else:
        own = TorchSide(characters, side == COMPILED)
    while count := pipe.recv():
        start = time.perf_counter()
        for _ in range(count):
            own.step(batches.next(), rate_at(step))
            step += 1
        pipe.send(time.perf_counter() - start)
    pipe.send(validation_loss(own.model(), validation))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add = parser.add_argument
    add("--text", metavar="FILE", required=True, help="text to train with")
    add("--steps", metavar="N", type=positive_int, default=ITERATIONS, help="iterations")
    add("--turn", metavar="N", type=positive_int, default=100, help="iterations of a turn")


def run(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints the table."""
    read_text(args.text)
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Any] = {}
    processes = []
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for side in SIDES:
        pipes[side], theirs = context.Pipe()
        made = context.Process(target=run_side, args=(theirs, side, args.text), daemon=True)
        made.start()
        processes.append(made)
    for done in range(0, args.steps, args.turn):
        count = min(args.turn, args.steps - done)
        for side, pipe in pipes.items():
            pipe.send(count)
            seconds[side].append(pipe.recv() / count)
    print(f"{'':14}{'ms/step':>10}{'first turn':>12}{'whole s':>10}{'validation':>12}")
    for side, pipe in pipes.items():
        pipe.send(0)
        own = seconds[side]
        whole = sum(own) * args.turn
        print(
            f"{side:14}{1e3 * median(own[1:] or own):10.2f}{own[0] * args.turn:11.1f}s"
            f"{whole:10.1f}{pipe.recv():12.4f}"
        )
    for process in processes:
        process.join()
    for side in SIDES[1:]:
        ratios = [theirs / ours for theirs, ours in zip(seconds[side][1:], seconds[WAFER][1:])]
        if ratios:
            print(f"wafer: {median(ratios):.2f} times as fast as {side}")
