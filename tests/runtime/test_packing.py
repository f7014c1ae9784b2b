"""Sessions of programs without padding: one program for any number of real tokens, and the padded
one for batches that need it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cerebras_tf.compiler.assemble import replan
from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.errors import DataError
from cerebras_tf.ir import Dim, TensorType
from cerebras_tf.ir.dimensions import UNLIMITED
from cerebras_tf.ir.program_file import load_program, save_program
from cerebras_tf.runtime.client import SavedProgram
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.protocol import Request
from tests.machines import client_of, store_of, variables_of
from tests.token_steps import LENGTH, TokenStep


def tagging_step(batch):
    """A layer of an encoder whose tokens are classified, trained by momentum."""
    s = TokenStep(batch=batch)
    mask = s.tokens("mask")
    x = s.dropout(s.feed(s.attend(s.embed(s.tokens()), s.mask_bias(mask), seed=4)), 9)
    kept = s.b.op("sub", 1.0, s.b.op("cast", mask, dtype="float32"))
    losses = s.b.op("mul", s.token_losses(x, s.tokens("labels")), kept)
    loss = s.b.op("div", s.total(losses), s.total(kept))
    s.momentum(loss, s.names, clip=True)
    return s.done(loss=loss, losses=losses)


class Compiler:
    """A source that compiles the step without padding where it may."""

    def __init__(self, strip, symbolic=False, wafers=1):
        self.reasons, self._strip, self._symbolic = [], strip, symbolic
        self._options = Options(price=CpuBackend().price, wafers=wafers)

    def compile(self, request):
        self.reasons.append(request.padding_reason)
        rows = request.types["ids"].shape[0]
        size = Dim.symbol("B", rows, UNLIMITED) if self._symbolic else rows
        strip = self._strip and not request.padding_reason
        step = tagging_step(size)
        program = compile_step(step, replace(self._options, strip=strip))
        assert (program.packing is not None) is strip and not step.padding_kept
        return program

    def enlarge(self, program, bounds):
        return replan(program, bounds, self._options.price)


def session_of(source):
    specs = tagging_step(4).specs
    random = np.random.default_rng(2)
    values = {
        name: np.zeros(spec.type.shape, "f")
        if name.endswith("Momentum")
        else (0.3 * random.standard_normal(spec.type.shape)).astype("f")
        for name, spec in specs.items()
    }
    return client_of(source, store_of(list(specs.values()), values))


def batch(lengths, seed=0, garbage=0):
    """A batch of sequences of these lengths; ids and labels of padding differ with `garbage`."""
    random, other = np.random.default_rng(seed), np.random.default_rng(garbage)
    shape = len(lengths), LENGTH
    padded = np.arange(LENGTH) >= np.array(lengths)[:, None]
    ids, labels = (random.integers(0, 12, shape).astype("int32") for _ in range(2))
    ids[padded], labels[padded] = (other.integers(0, 12, padded.sum()) for _ in range(2))
    return {
        "ids": ids,
        "labels": labels,
        "mask": padded.astype("int32"),
        "step": np.array(seed, np.int64),
    }


BATCHES = [
    batch(lengths, seed) for seed, lengths in enumerate([(3, 9, 1, 6), (2, 2, 2, 1), (9,) * 4])
]


@pytest.mark.parametrize("symbolic", [False, True])
def test_training_without_padding_is_training_with_it(symbolic):
    padded, packed = (session_of(Compiler(strip, symbolic)) for strip in (False, True))
    for given in BATCHES * 2:
        wanted, found = padded.run(given), packed.run(given)
        np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=1e-5)
        np.testing.assert_allclose(found["losses"], wanted["losses"], rtol=1e-4, atol=1e-5)
    state = variables_of(padded)
    for name, value in variables_of(packed).items():
        np.testing.assert_allclose(value, state[name], 1e-5, 1e-6, err_msg=name)


def test_later_batches_may_be_larger():
    padded, packed = (session_of(Compiler(strip, symbolic=True)) for strip in (False, True))
    for seed, lengths in enumerate([(3, 1), (2, 5, 1, 6), (9,) * 6, (3, 1)]):
        given = batch(lengths, seed)
        wanted, found = padded.run(given), packed.run(given)
        np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=1e-5)


def test_what_stands_in_padding_changes_no_bit_of_training():
    first, second = (session_of(Compiler(True)) for _ in range(2))
    for seed in range(3):
        first.run(batch((3, 9, 1, 6), seed, garbage=1))
        second.run(batch((3, 9, 1, 6), seed, garbage=2))
    left = variables_of(second)
    for name, value in variables_of(first).items():
        np.testing.assert_array_equal(value, left[name], err_msg=name)


def test_another_number_of_tokens_costs_no_compilation():
    source = Compiler(True)
    session = session_of(source)
    for seed in range(6):
        session.run(batch(np.random.default_rng(seed).integers(1, LENGTH + 1, 4), seed))
    assert source.reasons == [""]


def test_a_batch_that_needs_its_padding_gets_the_padded_program_once():
    source = Compiler(True)
    packed, padded = session_of(source), session_of(Compiler(False))
    in_front = batch((3, 9, 1, 6))
    in_front["mask"][0] = in_front["mask"][0, ::-1]
    for given in (BATCHES[0], in_front, BATCHES[1], in_front):
        np.testing.assert_allclose(packed.run(given)["loss"], padded.run(given)["loss"], rtol=1e-5)
    assert len(source.reasons) == 2 and "padding before" in source.reasons[1]


def test_a_saved_program_leaves_padding_out_and_refuses_what_it_cannot(tmp_path):
    program = compile_step(tagging_step(4), Options(price=CpuBackend().price, strip=True))
    save_program(program, tmp_path / "step")
    loaded = load_program(tmp_path / "step")
    assert str(loaded.packing.graph) == str(program.packing.graph)
    assert (loaded.packing.spaces, loaded.packing.checks) == (
        program.packing.spaces,
        program.packing.checks,
    )
    session, wanted = session_of(SavedProgram(loaded)), session_of(Compiler(True))
    assert session.run(BATCHES[0])["loss"] == wanted.run(BATCHES[0])["loss"]
    empty = batch((3, 9, 1, 6))
    empty["mask"][2] = 1
    with pytest.raises(DataError, match="sequence 2 of the batch consists of padding only"):
        session.run(empty)


def test_the_machine_made_beforehand_has_room_for_every_token():
    source = Compiler(True)
    session = session_of(source)
    session.run(BATCHES[1])
    program = session.program
    symbol = program.packing.spaces[0].symbol
    assert {s.name for s in Compiler(True).compile(_request()).symbols} == {symbol}
    assert session.prepare(_request()).arena_bytes == program.arena_bytes


def _request():
    types = {name: TensorType(str(a.dtype), a.shape) for name, a in BATCHES[0].items()}
    return Request(types)
