"""Measures a wafer at an address on this computer: what a step and a transfer cost.

Variables are sent to a server and back. Then PyTorch models of two sizes are trained on the wafer
of this process and on that of the server, in turn.

    scripts/cerebras-tf bench address
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Optional

from cerebras_tf.api import module_command

CREATE = ("credentials", "new", "--output")
SERVE = ("serve", "--listen", "127.0.0.1:0", "--credentials_path")
# Layers, width, heads, vocabulary, sequence, batch; and steps that are timed.
MODELS = {"tiny": ((1, 64, 1, 512, 32, 2), 400), "GPT-2 shape": ((12, 768, 12, 50257, 128, 2), 12)}
WARM_UP_STEPS = 3
VARIABLES, VARIABLE_BYTES = 16, 64 << 20


def _command(*arguments: str) -> list[str]:
    return module_command("modelzoo.commands.main", *arguments)


@contextmanager
def server() -> Iterator[tuple[str, str]]:
    """A server on this computer.

    Yields:
        Its address and the file of a client's credentials.
    """
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        client = Path(folder, "wafer.pem")
        subprocess.run(_command(*CREATE, str(client)), check=True, capture_output=True)
        command = _command(*SERVE, str(client.with_stem("wafer-server")))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                found = re.match(r"wafer at (\S+):", process.stdout.readline())
                assert found is not None
                yield found[1], str(client)
            finally:
                process.terminate()


def made(sizes: tuple[int, ...], address: Optional[dict[str, Any]] = None) -> Any:
    """A training of GPT-2 with random weights.

    Args:
        sizes: as in `MODELS`.
        address: `cs_ip` and `credentials_path`; None: the wafer of this process.

    Returns:
        The training and its batch.
    """
    import torch
    import transformers

    from cerebras_tf.api import TorchModel, TorchTraining
    from cerebras_tf.torch_step.settings import TrainingSettings

    layers, width, heads, vocabulary, sequence, batch = sizes
    config = transformers.GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        vocab_size=vocabulary,
        n_positions=sequence,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        use_cache=False,
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).train()
    ids = torch.randint(0, vocabulary, (batch, sequence))
    inputs = {"input_ids": ids, "labels": ids}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    settings = TrainingSettings()
    if address is not None:
        settings = TrainingSettings(**address)
    return TorchTraining(TorchModel(model, inputs, optimizer), settings), inputs


def measure_steps(name: str, address: dict[str, str]) -> None:
    """Times steps here and there in turn, and prints medians."""
    sizes, steps = MODELS[name]
    sides = [made(sizes), made(sizes, address)]
    times: list[list[float]] = [[], []]
    for step in range(WARM_UP_STEPS + steps):
        for (training, inputs), own in zip(sides, times):
            start = time.perf_counter()
            training.step(inputs)
            if step >= WARM_UP_STEPS:
                own.append(1e3 * (time.perf_counter() - start))
    here, there = (median(own) for own in times)
    added = median(far - near for near, far in zip(*times))
    print(
        f"{name:12} here {here:9.2f} ms, there {there:9.2f} ms: {added:6.2f} ms more, "
        f"{added / here:.1%}"
    )


def measure_transfers(address: dict[str, str]) -> None:
    """Times variables that are sent there and back, and prints the rates."""
    import numpy as np

    from cerebras_tf.address.choose import choose_wafer
    from cerebras_tf.api import TensorType
    from cerebras_tf.ir.step import Variable
    from cerebras_tf.memoryx.store import reading, write

    wafer = choose_wafer(address["cs_ip"], address["credentials_path"], print)
    assert wafer is not None
    values = np.random.default_rng(0).standard_normal(VARIABLE_BYTES // 4, np.float32)
    kind = TensorType("float32", values.shape)
    store = wafer.store([Variable(f"v{number}", kind) for number in range(VARIABLES)])
    rates: dict[str, list[float]] = {"sent": [], "received": []}
    for _ in range(4):
        for direction, own in rates.items():
            start = time.perf_counter()
            for variable in store.specs:
                if direction == "sent":
                    write(store, variable, values)
                else:
                    with reading(store, variable):
                        pass
            store.not_finite([variable])  # answered after all that was sent before
            own.append(VARIABLES * VARIABLE_BYTES / 1e9 / (time.perf_counter() - start))
    for direction, own in rates.items():
        print(f"{direction:12} {median(own[1:]):.2f} GB/s ({min(own):.2f} to {max(own):.2f})")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments: none."""


def run(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints medians."""
    with server() as (cs_ip, credentials_path):
        address = {"cs_ip": cs_ip, "credentials_path": credentials_path}
        measure_transfers(address)
        for name in MODELS:
            measure_steps(name, address)
