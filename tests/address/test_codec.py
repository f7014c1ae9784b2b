"""Messages as bytes and back, and what is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cerebras_tf.address import messages as m
from cerebras_tf.address.codec import FRAME_BYTES, Reader, encode
from cerebras_tf.errors import (
    BatchCapacityError,
    CerebrasError,
    DataError,
    PaddingError,
    StoreError,
)
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.runtime.protocol import Batch, ProgramNeeded, Request, StepResult
from tests.address.loopback import sent

TYPES = {"x": TensorType("bfloat16", (4, 2)), "y": TensorType("int64", ())}
NEEDED = ProgramNeeded(Request(TYPES, frozenset({"b", "a"}), False, "why", "k"), 3, {"R": 8}, "")
MESSAGES = [
    m.Hello("p", "1.0", "me"),
    m.Failure("DataError", "x: must be y.", None, (1, 2)),
    m.OpenStore((Variable("w", TYPES["x"], True), Variable("v/1", TYPES["y"])), 2),
    m.Names(("a", "b")),
    m.FindNotFinite(1, ()),
    m.RestoreRandomState(1, {"r/ä": -(2**62)}),
    m.Waiting(1, "other", 0.5),
    NEEDED,
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_arrive_as_they_were(message):
    assert sent(message) == message


@pytest.mark.parametrize("dtype", ["float32", "uint16", "bool", "float64"])
@pytest.mark.parametrize("shape", [(), (3, 0), (5, 7), (3 * FRAME_BYTES // 4 + 1,)])
def test_arrays_arrive_bit_for_bit_and_can_be_written(dtype, shape):
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    array = -array if dtype.startswith("float") else array  # zeros with a sign
    batch = Batch({"x": array, "y": array[..., None]}, frozenset({"loss"}), global_step=4)
    arrived = sent(m.Step(1, (batch, batch), 10)).batches[1]
    for name, given in batch.features.items():
        found = arrived.features[name]
        assert (found.dtype, found.shape) == (given.dtype, given.shape)
        assert found.tobytes() == given.tobytes() and found.flags.writeable
    assert (arrived.wanted, arrived.global_step) == (batch.wanted, 4)


def test_zeros_are_not_sent():
    frames = list(encode(1, m.Put(1, "w", np.zeros((1000, 1000), np.float32))))
    assert sum(map(len, frames)) < 200
    assert sent(m.Content(np.zeros((100, 100)))).array.shape == (100, 100)
    negative = sent(m.Content(np.full(5000, -0.0, np.float32))).array
    assert np.signbit(negative).all()


def test_numpy_scalars_of_results_arrive_as_arrays():
    found = sent(m.Stepped((StepResult(0, {"R": np.int64(3)}, {"loss": np.float32(2)}, 1),)))
    assert found.results[0].values["loss"].shape == () and found.results[0].sizes == {"R": 3}


def test_arrays_of_objects_are_refused():
    with pytest.raises(DataError, match="arrays must be of"):
        list(encode(1, m.Content(np.array([b"text"]))))


def test_sizes_are_checked_before_memory_is_taken():
    reader = Reader(1000, m.ANSWERS)
    (frame,) = encode(1, m.Content(np.zeros(10**6)))  # a hundred bytes that ask for eight million
    with pytest.raises(DataError, match="more than 1000 bytes"):
        reader.feed(frame)


@pytest.mark.parametrize(
    "text",
    [
        b'["Content",[0],[["float32",[9223372036854775807,4],false]]]',
        b'["Content",[0],[["object",[1],false]]]',
        b'["Content",[1],[["int8",[0],false]]]',
        b'["Content",[0,1],[["int8",[0],false]]]',
        b'["Content",[0],[["int8",[-1],false]]]',
        b'["Opened",[true],[]]',
        b'["Opened",[9223372036854775808],[]]',
        b'["Numbers",[{"a":1,"a":2}],[]]',
        b'["Waiting",[1,"x",NaN],[]]',
        b'["Hello",["","","",""],[]]',  # of a client
        b'["__import__",[],[]]',
        b"[" * 5000,
        b"\xff",
    ],
)
def test_malformed_headers_are_refused(text):
    frame = b"CSW1" + (1).to_bytes(8, "little") + bytes(8) + len(text).to_bytes(4, "little") + text
    with pytest.raises(DataError, match="must be well formed"):
        Reader(1000, m.ANSWERS).feed(frame)


def mutated(frame, rng):
    """A frame with a few bytes changed, removed or repeated."""
    frame = bytearray(frame)
    for _ in range(rng.randint(1, 4)):
        at, how = rng.randrange(len(frame) + 1), rng.random()
        if how < 0.6 and at < len(frame):
            frame[at] = rng.choice((rng.randrange(256), *b'0919-"[]{}:,ntf'))
        elif how < 0.8:
            del frame[at : at + rng.randint(1, 9)]
        else:
            frame[at:at] = frame[max(0, at - rng.randint(1, 30)) : at]
    return bytes(frame)


def fuzz(count):
    rng = random.Random(0)
    batch = Batch({"x": np.arange(12, dtype=np.float32)}, frozenset({"loss"}))
    seeds = [b"".join(encode(1, each)) for each in (*MESSAGES, m.Step(1, (batch,)))]
    refused = 0
    for _ in range(count):
        try:
            Reader(1 << 16, (*m.REQUESTS, *m.ANSWERS)).feed(mutated(rng.choice(seeds), rng))
        except CerebrasError:
            refused += 1
    assert refused > count // 2


def test_mutated_frames_are_read_or_refused():
    fuzz(2000)


@pytest.mark.slow
def test_many_mutated_frames_are_read_or_refused():
    fuzz(1_000_000)


def test_errors_arrive_as_their_class():
    large = m.error_of(sent(m.failure_of(BatchCapacityError("too large.", 5, 4, 3))))
    assert isinstance(large, BatchCapacityError)
    assert (large.needed_bytes, large.available_bytes, large.fixed_bytes) == (5, 4, 3)

    class Special(PaddingError):
        pass

    error = m.error_of(m.failure_of(StoreError("memoryx_dir: must be writable.")))
    assert str(error).startswith("--memoryx_dir of `cerebras-tf serve`: must be writable. The comp")
    error = m.error_of(sent(m.failure_of(Special("no.", code="padding"))))
    assert type(error) is PaddingError and str(error) == "no. [padding]"
    for other in (KeyError("secret"), OSError(28, "No space left"), MemoryError()):
        found = m.error_of(m.failure_of(other))
        assert isinstance(found, CerebrasError) and "secret" not in str(found)
    assert type(m.error_of(m.Failure("SystemExit", "x"))) is CerebrasError
