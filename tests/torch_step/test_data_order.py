"""The position in the data: every kind of loader continues with the same batches."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from torch.utils.data import DataLoader, Dataset, IterableDataset

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.torch_step.data_order import DataOrder
from cerebras_tf.torch_step.plain_state import from_json, to_json
from tests.messages import raises

EXAMPLES = 10


class Augmented(Dataset):
    """Examples with random numbers of all generators."""

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, index):
        noise = float(torch.rand(())) + np.random.rand() + random.random()
        return torch.tensor([index, noise], dtype=torch.float64)


class Stream(IterableDataset):
    """Random numbers."""

    def __iter__(self):
        return (torch.rand(2) for _ in range(EXAMPLES))


class Stateful:
    """A loader that saves its own position, as torchdata's StatefulDataLoader."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        while self.position < EXAMPLES:
            self.position += 1
            yield torch.tensor([self.position])
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


LOADERS = {
    "shuffled": lambda: DataLoader(Augmented(), 3, shuffle=True),
    "own generator": lambda: DataLoader(
        Augmented(), 3, shuffle=True, generator=torch.Generator().manual_seed(9)
    ),
    "workers": lambda: DataLoader(Augmented(), 3, shuffle=True, num_workers=2),
    "stream": lambda: DataLoader(Stream(), 3),
    "stateful": Stateful,
    "list": lambda: [torch.tensor([i]) for i in range(4)],
}


def seed(number):
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("taken", [0, 3, 6, 8])
def test_a_restored_order_gives_the_same_batches(kind, taken):
    if kind == "workers" and taken in (0, 6):
        pytest.skip("slow, and covered by the others")
    seed(1)
    order = DataOrder(LOADERS[kind](), log=lambda line: None)
    for _ in range(taken):
        order.take()
    state = json.loads(json.dumps(to_json(order.state(), "order")))
    expected = [order.take() for _ in range(7)]
    seed(2)
    again = DataOrder(LOADERS[kind](), log=lambda line: None)
    again.restore(from_json(state))
    assert all(torch.equal(again.take(), batch) for batch in expected)
    assert order.epoch == again.epoch


def test_processes_take_turns_and_have_the_same_state():
    def orders():
        for rank in range(2):
            seed(3)
            yield DataOrder(LOADERS["shuffled"](), rank, 2)

    seed(3)
    alone = DataOrder(LOADERS["shuffled"]())
    expected = [alone.take() for _ in range(6)]
    both, states = [], []
    for order in orders():
        found = []
        for _ in range(3):
            found.append(order.take())
            order.align()
        both.append(found)
        states.append(json.dumps(to_json(order.state(), "order")))
    assert all(torch.equal(expected[i], both[i % 2][i // 2]) for i in range(6))
    assert states[0] == states[1]


def test_other_data_than_before_are_refused():
    order = DataOrder([torch.tensor([i]) for i in range(4)], log=lambda line: None)
    for _ in range(2):
        order.take()
    other = DataOrder([torch.tensor([2 * i]) for i in range(4)], log=lambda line: None)
    with raises(DataError, "batch 2", "epoch 0", "resume_data"):
        other.restore(order.state())


@pytest.mark.parametrize("loader,error", [(iter([1]), ConfigError), (3, ConfigError)])
def test_what_cannot_start_again_is_refused(loader, error):
    with raises(error, "loader", type(loader).__name__):
        DataOrder(loader)


def test_an_empty_loader_is_refused():
    with raises(DataError, "epoch 0"):
        DataOrder([]).take()
