"""The queue for the wafer, with a clock that the tests set."""

from __future__ import annotations

import random

import pytest

from cerebras_tf.address.lease import Leases
from cerebras_tf.errors import SystemUnreachableError


def test_clients_get_the_wafer_in_the_order_in_which_they_ask():
    leases = Leases()
    for name in "abc":
        leases.ask(name, name.upper())
    leases.advance(1.0)
    assert [leases.position(name) for name in "abcd"] == [0, 1, 2, -1]
    assert leases.waiting == ["B", "C"] and leases.holder.since == 1.0
    leases.lose("b", 2.0)  # one that waits gives up its place
    leases.release("a")
    leases.advance(3.0)
    assert leases.holder.lease == "c" and not leases.waiting


def test_a_lease_is_kept_for_a_while_without_a_connection():
    leases = Leases(keep_s=10)
    leases.ask("a", "a")
    leases.advance(0)
    leases.lose("a", 5)
    leases.advance(14.9)
    assert leases.resume("a") and not leases.resume("b")
    leases.advance(100)
    assert leases.position("a") == 0
    leases.lose("a", 100)
    leases.ask("b", "b")
    leases.advance(110)
    assert leases.position("b") == 0 and not leases.resume("a")


def test_a_full_queue_refuses():
    leases = Leases(max_queue=1)
    leases.ask("a", "a")
    with pytest.raises(SystemUnreachableError, match="at most 1"):
        leases.ask("b", "b")


def test_no_schedule_leaves_a_client_without_its_turn():
    rng, leases, now = random.Random(0), Leases(keep_s=5, max_queue=50), 0.0
    order, granted = [], []
    for number in range(3000):
        now += rng.random()
        waiting = list(leases._queue)
        kind, holder = rng.randrange(5), leases.holder
        if kind == 0 and len(waiting) < 50:
            leases.ask(str(number), "")
            order.append(str(number))
        elif kind == 1 and waiting:
            left = rng.choice(waiting)
            leases.lose(left, now)
            order.remove(left)
        elif kind == 2 and holder:
            leases.lose(holder.lease, now)
        elif kind == 3 and holder:
            assert leases.resume(holder.lease)
        elif kind == 4 and holder and rng.random() < 0.5:
            leases.release(holder.lease)
        leases.advance(now)
        if leases.holder and (not granted or granted[-1] != leases.holder.lease):
            granted.append(leases.holder.lease)
        assert not (leases.holder is None and leases.waiting)
    assert granted == order[: len(granted)] and len(granted) > 100
