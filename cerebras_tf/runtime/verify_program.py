"""Checks a program before it is run: what a file may hold is bounded here, nothing is trusted.

The schedule is walked without computing. Every slot that is read must hold its value, and no two
values that are needed at once may share bytes. The types of all results are inferred again.
"""

from __future__ import annotations

import bisect
import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Graph, Node, TensorType, Value, verify
from cerebras_tf.ir.dimensions import Dim
from cerebras_tf.ir.packing import BIAS, FIRST, HIDDEN, LIST, REAL, SPAN, WEIGHTS, ZERO, Packing
from cerebras_tf.ir.program import (
    ARENA,
    CONSTANT,
    FEATURE,
    HEAP,
    VARIABLE,
    VIEW,
    Instruction,
    Program,
    Slot,
)
from cerebras_tf.ir.program_file import load_program
from cerebras_tf.ir.schedule import Free, OnWafer, Run, Share, StreamIn, StreamOut
from cerebras_tf.kernels.registry import PLAIN
from cerebras_tf.ops import gives_view, infer, lookup
from cerebras_tf.user_files import parsing

_KINDS = (ARENA, HEAP, VIEW, FEATURE, VARIABLE, CONSTANT)
_MAX = 1 << 60  # of sizes, offsets and counts
_ALIGNMENT_BYTES = 128
_IN_PLACE = "fused_elementwise"  # may write a variable that it reads
_OF_TOKENS, _OF_CHECKS = (BIAS, WEIGHTS, LIST), (ZERO, HIDDEN, REAL, FIRST, SPAN)


def load_verified(path: Union[str, Path]) -> Program:
    """Reads a program that save_program wrote, and verifies it.

    Raises:
        GraphError: the file is damaged, or its program could not be run safely.
        OSError: the file cannot be read.
    """
    program = load_program(path)
    try:
        with parsing():
            verify_program(program)
    except ValueError as error:
        raise GraphError(f"{path}: {str(error).rstrip('.')}. Compile the model again.") from error
    return program


def verify_program(program: Program) -> None:
    """Raises GraphError where a program could read or write what it must not."""
    _Verifier(program).run()


def _require(holds: bool, rule: str, received: Any) -> None:
    if not holds:
        raise GraphError(f"program: {rule}. Received: {received!r:.200}.")


def _number(value: Any, what: str, low: int = 0, end: int = _MAX) -> int:
    _require(type(value) is int and low <= value < end, f"{what} must be in [{low}, {end})", value)
    return int(value)


def _require_names(value: Iterable[Any], what: str, known: Iterable[str]) -> None:
    known = set(known)
    for name in value:
        _require(isinstance(name, str) and name in known, f"{what} must be a known name", name)


class _Verifier:
    def __init__(self, program: Program) -> None:
        self.program, self.slots = program, program.slots
        self._readable: set[int] = set()
        self._stored: set[str] = set()
        self._written: set[int] = set()  # arena slots that were written before
        self._views: dict[int, set[int]] = {}
        self._places: list[tuple[int, int]] = []  # offset and number of readable arena slots
        self._value: dict[int, Value] = {}
        self._time = 0
        self._names = {slot: n for n, slot in {**program.variables, **program.staged}.items()}

    def run(self) -> None:
        self._check_slots()
        self._check_tables()
        for body in self.program.bodies:
            for item in body:
                _check_instruction(item)
        for slot in range(len(self.slots)):
            if self.slots[slot].kind in (FEATURE, CONSTANT):
                self._readable.add(slot)
        schedule = self.program.schedule
        for at, entry in enumerate(schedule):
            for name, value in vars(entry).items():
                _require(_is_field(name, value), f"{entry.kind} has a valid {name}", value)
            for slot in getattr(entry, "slots", ()):
                self._slot(slot)
            if not isinstance(entry, (Free, OnWafer, Share)):
                _number(getattr(entry, "layer", 0), "layer", -1, len(self.program.layers) or 1)
            if isinstance(entry, OnWafer):
                _number(entry.wafer, "wafer", 0, self.program.wafers)
                _number(entry.count, "entries of a wafer", 0, len(schedule) - at)
            getattr(self, f"_{entry.kind}", lambda entry: None)(entry)
        for name, slot in self.program.results.items():
            self._read_late(slot, f"result {name}")

    # Tables.

    def _slot(self, slot: Any, kinds: Sequence[str] = _KINDS) -> Slot:
        found = self.slots[_number(slot, "slot", 0, len(self.slots))]
        _require(found.kind in kinds, f"slot {slot} must be of {', '.join(kinds)}", found.kind)
        return found

    def _check_slots(self) -> None:
        end = 0
        for number, slot in enumerate(self.slots):
            _require(slot.kind in _KINDS, f"slot {number} must be of a known kind", slot.kind)
            _number(slot.offset, "offset")
            _number(slot.base, "base", -1, number)  # no view shows itself, or a later one
            _require(len(slot.life) == 2, "a life has two ends", slot.life)
            _number(_number(slot.life[1], "life") - _number(slot.life[0], "life"), "life")
            for dim in slot.type.shape:
                if dim is not None:
                    least, most = (dim.min, dim.bound) if isinstance(dim, Dim) else (dim, dim)
                    _number(least, "dimension"), _number(most, "dimension")
            if slot.kind == ARENA:
                _require(slot.offset % _ALIGNMENT_BYTES == 0, "offsets are aligned", slot.offset)
                end = max(end, slot.offset + slot.type.max_bytes)
            _require((slot.kind == VIEW) == (slot.base >= 0), "views have a base", slot)
        size = _number(self.program.arena_bytes, "arena_bytes")
        rule = f"the arena must have about the {end} bytes that are used"
        _require(end <= size < end + 2 * _ALIGNMENT_BYTES, rule, size)

    def _check_tables(self) -> None:
        program = self.program
        _number(program.wafers, "wafers", 1, 1 << 20)
        tables = (program.features, FEATURE), (program.variables, VARIABLE)
        for table, kind in (*tables, (program.staged, VARIABLE)):
            for slot in table.values():
                self._slot(slot, (kind,))
            _require(len(set(table.values())) == len(table), "names have their own slots", table)
        given = {FEATURE: program.features.values(), CONSTANT: program.constants}
        given[VARIABLE] = self._names
        for number, each in enumerate(self.slots):
            missing = each.kind in given and number not in given[each.kind]
            _require(not missing, f"slot {number} must have a name", each)
        for number, array in program.constants.items():
            type = self._slot(number, (CONSTANT,)).type
            found = array.dtype.name, array.shape
            wanted = [(kind.name, type.shape) for kind in (type.numpy_dtype, type.storage_dtype)]
            _require(found in wanted, f"constant {number} must be {type}", found)
            node = Node("constant", [], {"value": array})
            self._value[number] = Value("", type, node, 0)
            node.outputs = [self._value[number]]
        for name, gradients in program.gradients.items():
            _require_names([name], "a gradient", program.variables)
            for slot in (slot for slots in gradients for slot in slots):
                self._slot(slot)
        for layer in program.layers:
            _require(isinstance(layer.name, str), "a layer has a name", layer.name)
            _require_names(
                (*layer.variables, *layer.slots), "variables of a layer", program.variables
            )
            _number(layer.weight_bytes, "weight_bytes"), _number(layer.slot_bytes, "slot_bytes")
        for name, draw in program.draws.items():
            _require_names([name], "draws", program.features)
            _number(draw.key, "key", -(1 << 63), 1 << 63)
            _number(draw.stream, "stream", -(1 << 63), 1 << 63)
        for name, rank in program.owners.items():
            _require_names([name], "an owner", {**program.variables, **program.staged})
            _number(rank, "owner", 0, program.wafers)
        _require_names(filter(None, [program.global_step]), "global_step", program.features)
        if program.packing is not None:
            _check_packing(program.packing, program.features)

    # Entries of the schedule.

    def _stream_in(self, entry: StreamIn) -> None:
        for slot in entry.slots:
            self._slot(slot, (VARIABLE,))
            name = self._names[slot]
            is_there = name in self.program.variables or name in self._stored
            _require(is_there, "a staged value must be stored before", name)
            self._readable.add(slot)

    def _run(self, entry: Run) -> None:
        body = self.program.bodies[_number(entry.body, "body", 0, len(self.program.bodies))]
        for item in body:
            for at in (*item.inputs, *item.outputs):
                _number(at, f"positions of {item.op}", 0, len(entry.slots))
            self._instruction(
                item, [entry.slots[i] for i in item.inputs], [entry.slots[i] for i in item.outputs]
            )

    def _stream_out(self, entry: StreamOut) -> None:
        places = {**self.program.variables, **self.program.staged}
        for name, slot in entry.stores:
            _require_names([name], "a stored value", places)
            _require(name not in self._stored, "a value is stored once", name)
            self._stored.add(name)
            self._read_late(slot, name)
            wanted, found = self.slots[places[name]].type, self.slots[slot].type
            _require(wanted == found, f"{name} must be stored as {wanted}", str(found))

    def _free(self, entry: Free) -> None:
        for slot in entry.slots:
            self._slot(slot, (HEAP, VIEW, VARIABLE))
            self._drop(slot)

    def _share(self, entry: Share) -> None:
        _number(entry.wafer, "wafer", 0, self.program.wafers)
        _require_names(entry.variables, "variables that are shared", self.program.variables)
        for slot in entry.slots:
            self._read(slot, "share")

    # Instructions.

    def _instruction(self, item: Instruction, inputs: list[int], outputs: list[int]) -> None:
        for slot in inputs:
            self._read(slot, item.op)
        node = Node(item.op, [self._value_of(slot) for slot in inputs], item.attrs)
        found = [self.slots[slot].type for slot in outputs]
        structure = lookup(item.op).structure
        if structure is not None and structure.compiles_regions:
            _check_regions(item, [value.type for value in node.inputs], found)
        else:
            wanted = infer(item.op, node.inputs, item.attrs)
            _require(wanted == found, f"{item.op} must give {list(map(str, wanted))}", found)
        node.outputs = [Value("", kind, node, at) for at, kind in enumerate(found)]
        is_view = gives_view(item.op, [v.type for v in node.inputs], found, item.attrs)
        for slot, value in zip(outputs, node.outputs):
            self._write(item, slot, inputs, outputs, inputs[value.index] if is_view else None)
            self._value[slot] = value

    def _value_of(self, slot: int) -> Value:
        return self._value.get(slot) or Value("", self.slots[slot].type)

    def _read(self, slot: int, what: str) -> None:
        # Of several wafers one may have computed it, or recomputed what another one shares.
        _require(slot in self._readable, f"{what} must read a value that is there", slot)
        self._live(slot)

    def _read_late(self, slot: Any, what: str) -> None:
        """Reads a value that may also be a variable that was freed."""
        if self._slot(slot).kind != VARIABLE:
            self._read(slot, what)

    def _live(self, slot: int) -> None:
        base = self.slots[self.program.base_of(slot)]
        if base.kind == ARENA:
            _require(base.life[1] >= self._time, f"slot {slot} must live as long as it is read", 0)

    def _write(
        self, item: Instruction, slot: int, inputs: list[int], outputs: list[int], shown: Any
    ) -> None:
        kind = self._slot(slot, (ARENA, HEAP, VIEW, VARIABLE)).kind
        _require((kind == VIEW) == (shown is not None), f"{item.op} and views", kind)
        bases = [self.program.base_of(i) for i in inputs]
        if kind == VIEW:
            _require(self.slots[slot].base == shown, "a view shows its operand", slot)
            self._views.setdefault(bases[inputs.index(shown)], set()).add(slot)
        elif slot in bases:
            over = lookup(item.op).overwrites
            may = item.op == _IN_PLACE and kind == VARIABLE
            may |= over is not None and inputs[over] == slot and bases.count(slot) == 1
            _require(may, f"{item.op} must not overwrite its operand", slot)
        if kind == VARIABLE:
            _require(slot in self._readable, "a variable must be there to be written", slot)
        if kind == ARENA:
            self._place(item, slot, {*bases, *outputs} - {slot})
        for view in self._views.pop(slot, ()) if kind != VIEW else ():
            self._readable.discard(view)
        self._readable.add(slot)

    def _place(self, item: Instruction, slot: int, others: set[int]) -> None:
        """Makes an arena slot readable, and no other one that has bytes in common with it."""
        start = self.slots[slot].offset
        end = start + self.slots[slot].type.max_bytes
        if slot not in self._written:
            self._written.add(slot)
            born = self.slots[slot].life[0]
            _require(born >= self._time, "slots live in the order in which they are written", slot)
            self._time = born
        at = bisect.bisect_left(self._places, (start, -1))
        first = at
        while first and self._end(first - 1) > start:
            first -= 1
        while at < len(self._places) and self._places[at][0] < end:
            at += 1
        for _, other in self._places[first:at]:
            _require(other not in others, f"results of {item.op} must not share bytes", slot)
            if other != slot:
                self._drop(other)
        self._places[first:at] = [(start, slot)] if end > start else []

    def _end(self, at: int) -> int:
        return self._places[at][0] + self.slots[self._places[at][1]].type.max_bytes

    def _drop(self, slot: int) -> None:
        self._readable.discard(slot)
        for view in self._views.pop(slot, ()):
            self._readable.discard(view)


def _is_field(name: str, value: Any) -> bool:
    """Whether a field of an entry has its type."""
    if name == "slots":
        return isinstance(value, tuple) and all(type(slot) is int for slot in value)
    if name == "stores":
        pairs = isinstance(value, tuple) and all(isinstance(p, tuple) for p in value)
        return pairs and all(list(map(type, pair)) == [str, int] for pair in value)
    if name == "variables":
        return isinstance(value, tuple) and all(isinstance(each, str) for each in value)
    return isinstance(value, str) if name == "direction" else type(value) is int


def _check_instruction(item: Instruction) -> None:
    lookup(item.op)
    _require(isinstance(item.source, str), "a source is text", item.source)
    for number in vars(item.cost).values():
        _number(number, "cost")
    structure = lookup(item.op).structure
    _check_arguments(item)
    for key, value in item.attrs.items():
        if isinstance(value, Graph):
            verify(value, infer)
        elif isinstance(value, Program):
            may = structure is not None and structure.compiles_regions
            _require(may, f"{item.op} must have no programs", key)


def _check_arguments(item: Instruction) -> None:
    """Checks operands and names of attributes against the op's plain kernel."""
    given = [*item.inputs, *item.outputs]
    _require(all(type(at) is int for at in given), f"positions of {item.op} are numbers", given)
    if item.op in PLAIN:
        try:
            inspect.signature(PLAIN[item.op]).bind(*item.inputs, **item.attrs)
        except TypeError as error:
            raise GraphError(f"program: {item.op} must have its attributes. {error}.") from error


def _check_regions(item: Instruction, inputs: list[TensorType], outputs: list[TensorType]) -> None:
    """Verifies the programs of a structural op."""
    structure = lookup(item.op).structure
    assert structure is not None and structure.signature is not None
    try:
        expected = structure.signature(item.attrs, inputs, outputs)
    except (KeyError, TypeError) as error:
        raise GraphError(f"program: {item.op} must have its attributes. {error!r}.") from error
    for key, (given, made) in expected.items():
        region = item.attrs.get(key)
        if not isinstance(region, Program):
            raise GraphError(f"program: {item.op} must have {key}. Received: {region!r}.")
        verify_program(region)
        _require(not (region.variables or region.staged), "regions have no variables", item.op)
        for table, wanted in ((region.features, given), (region.results, made)):
            found = [region.slots[slot].type for slot in table.values()]
            named = list(table) == [str(at) for at in range(len(wanted))]
            holds = named and len(found) == len(wanted) and all(map(_has_type, found, wanted))
            _require(holds, f"a region of {item.op} must have {list(map(str, wanted))}", found)


def _has_type(found: TensorType, wanted: TensorType) -> bool:
    """Whether a type is the wanted one, whose unknown dimensions may have any size."""
    same = [other is None or dim == other for dim, other in zip(found.shape, wanted.shape)]
    return found.dtype == wanted.dtype and found.rank == wanted.rank and all(same)


def _check_packing(packing: Packing, features: Mapping[str, int]) -> None:
    _require(isinstance(packing.graph, Graph), "packing has a graph", packing.graph)
    verify(packing.graph, infer)
    count = len(packing.graph.outputs)
    spaces = [space.name for space in packing.spaces]
    for space in packing.spaces:
        _require(space.kind in _OF_TOKENS, "tokens are found by a known rule", space.kind)
        for value in space.values:
            _number(value, "value of packing", 0, count)
    for check in packing.checks:
        _require(check.kind in _OF_CHECKS, "packing has known checks", check.kind)
        _require_names(filter(None, (check.space, check.among)), "a token space", spaces)
        _number(check.value, "value of packing", -1, count)
        _number(check.layout, "layout"), _number(check.number, "number")
    _require(all(isinstance(name, str) for name in (*spaces, *features)), "names are texts", spaces)
