"""The models that `bench` trains, in PyTorch: independent implementations to compare speeds with.

As a PyTorch user writes them: fused scaled dot-product attention, fused AdamW, autocast for
bfloat16, torch.compile. They have the parameters of the zoo's models, not their initial values, and
clip gradients where the zoo's params files do.

Letters: B sequences, S their length, H width, A heads.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.models import LEARNING_RATE, batches_of, read_params
from benchmarks.turns import Turns
from cerebras_tf.installing import install_peers


class Peer(NamedTuple):
    """How PyTorch runs: compiled or step by step, in bfloat16 or float32."""

    compiled: bool
    bfloat16: bool


PEERS = {
    "torch": Peer(False, False),
    "torch compile": Peer(True, False),
    "torch bf16": Peer(False, True),
    "compile bf16": Peer(True, True),
}


@dataclass(frozen=True)
class Missing:
    """A side that cannot run here, and why."""

    reason: str


def run_peer(pipe: Any, shape: Any, side: str) -> None:
    """A peer's process: sends 0, or Missing, then a Turn for every number of steps it receives.

    It ends when the pipe is closed.
    """
    started = time.perf_counter()
    try:
        import torch
    except ImportError:
        pipe.send(Missing(f"PyTorch is not installed: {install_peers()}"))
        return
    if shape.model not in ("gpt2", "bert"):
        pipe.send(Missing(f"there is no PyTorch model of {shape.model} here"))
        return
    peer, most = PEERS[side], read_params(shape).optimizer.max_gradient_norm
    torch.manual_seed(1)
    model = make_model(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    loss_of = torch.compile(model) if peer.compiled else model
    batches = [tuple(map(torch.from_numpy, batch)) for batch in _arrays(shape)]

    def step(number: int) -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=peer.bfloat16):
            loss = loss_of(*batches[number % len(batches)])
        loss.backward()
        if most:
            torch.nn.utils.clip_grad_norm_(model.parameters(), most)
        optimizer.step()
        return float(loss.detach())

    turns, number = Turns(started), 0
    try:
        loss = step(number)
    except Exception as error:  # of the compiler, above all: any of many types
        pipe.send(Missing(f"{type(error).__name__}: {str(error).splitlines()[0]}"))
        return
    pipe.send(0)
    turns.note()
    while True:
        pipe.send(turns.ended(loss))
        try:
            steps = pipe.recv()
        except EOFError:
            return
        turns.begin()
        for _ in range(steps):
            number += 1
            loss = step(number)
            turns.note()


def _arrays(shape: Any) -> list[tuple[Any, ...]]:
    """Batches as int64 arrays: ids, padding mask, and labels."""
    return [
        tuple(
            array.astype("int64")
            for array in (features["input_ids"], features["input_mask"], labels)
        )
        for features, labels in batches_of(shape)
    ]


def make_block(shape: Any) -> Any:
    """A layer: attention and feed-forward; called with x [B, S, H] and what is seen, or None."""
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        """Attention and feed-forward; norms before (GPT-2) or after (BERT)."""

        def __init__(self) -> None:
            super().__init__()
            width = shape.hidden
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

        def attend(self, x: Any, seen: Any) -> Any:
            batch, length, width = x.shape
            heads = self.qkv(x).view(batch, length, 3, shape.heads, -1).permute(2, 0, 3, 1, 4)
            q, k, v = heads.unbind(0)  # [B, A, S, H / A] each
            mixed = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=seen, is_causal=seen is None
            )
            return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

        def feed(self, x: Any) -> Any:
            approximate = "tanh" if shape.model == "gpt2" else "none"
            return self.down(functional.gelu(self.up(x), approximate=approximate))

        def forward(self, x: Any, seen: Any) -> Any:
            if shape.model == "gpt2":
                x = x + self.attend(self.norms[0](x), seen)
                return x + self.feed(self.norms[1](x))
            x = self.norms[0](x + self.attend(x, seen))
            return self.norms[1](x + self.feed(x))

    return Block()


def make_model(shape: Any) -> Any:
    """The model of a shape: called with ids [B, S], mask [B, S] and labels, it returns the loss."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Model(nn.Module):
        """GPT-2 with tied embeddings, or BERT with a pooler and two classes."""

        def __init__(self) -> None:
            super().__init__()
            width = shape.hidden
            self.words = nn.Embedding(shape.vocabulary, width)
            self.positions = nn.Embedding(shape.sequence, width)
            self.blocks = nn.ModuleList(make_block(shape) for _ in range(shape.layers))
            self.norm = nn.LayerNorm(width)
            if shape.model == "bert":
                self.segments = nn.Embedding(2, width)
                self.pooler, self.classes = nn.Linear(width, width), nn.Linear(width, 2)
            nn.init.normal_(self.words.weight, std=0.02)

        def forward(self, ids: Any, mask: Any, labels: Any) -> Any:
            x = self.words(ids) + self.positions.weight[: ids.shape[1]]
            if shape.model == "bert":
                x = self.norm(x + self.segments.weight[0])
                seen = (mask == 0)[:, None, None, :]
                for block in self.blocks:
                    x = block(x, seen)
                logits = self.classes(torch.tanh(self.pooler(x[:, 0])))
                return functional.cross_entropy(logits, labels)
            for block in self.blocks:
                x = block(x, None)
            logits = functional.linear(self.norm(x), self.words.weight)
            return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    return Model()
