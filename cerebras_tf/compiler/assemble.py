"""Ordered step graph -> Program: slots, bodies, schedule, memory plan and prices.

Runs of equal shape share one body. Memory is planned for the bounds of symbols.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

from cerebras_tf.compiler.memory import Lifetime, plan_memory
from cerebras_tf.compiler.sharding import ALONE, EVERYWHERE, Ownership
from cerebras_tf.compiler.spilling import find_spilled
from cerebras_tf.ir import Graph, Node, StepGraph, Value
from cerebras_tf.ir.binding import copy_graph
from cerebras_tf.ir.program import (
    ARENA,
    CONSTANT,
    FEATURE,
    HEAP,
    VARIABLE,
    VIEW,
    Instruction,
    Layer,
    Price,
    Program,
    Slot,
)
from cerebras_tf.ir.schedule import Entry, Free, OnWafer, Run, Share, StreamIn, StreamOut
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.ir.text import print_attribute
from cerebras_tf.ops import is_view, lookup, viewed
from cerebras_tf.ops.cost import price, price_at_bounds
from cerebras_tf.passes.fuse_elementwise import FUSED, fuse_elementwise


def assemble(
    step: StepGraph,
    layers: int,
    streaming: bool,
    price: Price,
    staging: bool = False,
    spilled: Collection[Value] = (),
    owned: Ownership = ALONE,
) -> Program:
    """Builds the program.

    Args:
        step: nodes in schedule order, with layers and directions.
        streaming: weight streaming mode; else pipelined mode.
        staging: whether gradients that wait for a norm of all gradients are spilled to the store.
        spilled: activations that are spilled; only with staging.
    """
    return _Assembler(step, layers, streaming, price, staging, spilled, owned).run()


def planned_bytes(step: StepGraph, staging: bool = False, spilled: Collection[Value] = ()) -> int:
    """Bytes of the activation memory of `assemble`'s program."""
    return _Assembler(step, 0, staging, price, staging, spilled).plan().arena_bytes


def assemble_region(graph: Graph, price: Price) -> Program:
    """The program of a region; its features and results are called "0", "1", ... in order."""
    graph = copy_graph(graph, lambda part: part)  # another instruction may have the same graph
    fuse_elementwise(graph, lambda node: 0)
    step = StepGraph(graph)
    step.features = {str(i): value for i, value in enumerate(graph.inputs)}
    outputs, graph.outputs = graph.outputs, []
    step.results = {str(i): value for i, value in enumerate(outputs)}
    return assemble(step, layers=0, streaming=False, price=price)


class _Assembler:
    def __init__(
        self,
        step: StepGraph,
        layers: int,
        streaming: bool,
        price: Price,
        staging: bool,
        spilled: Collection[Value],
        owned: Ownership = ALONE,
    ) -> None:
        self.step = step
        self.layers = layers
        self.streaming = streaming
        self.price = price
        self.owned = owned
        self.program = Program(wafers=owned.wafers, owners=dict(owned.owners))
        self.slot_of: dict[Value, int] = {}
        self._bodies: dict[Any, int] = {}
        self._nodes = [node for node in step.graph.nodes if node.op != "constant"]
        self._groups = _group(self._nodes)
        self._staged = find_spilled(self._groups, step, spilled) if staging and streaming else {}
        self._readers_of_staged = {s.name: s.readers for s in self._staged.values()}
        self._staged_slot: dict[Value, int] = {}  # of staged values, for late readers

    def plan(self) -> Program:
        """The program with slots and memory, without a schedule."""
        self._add_inputs()
        self._time_of = {node: i for i, node in enumerate(self._nodes)}
        self._last = self._last_uses()
        self._in_place = self._updates_in_place()
        self._add_staged()
        for node in self._nodes:
            for value in node.outputs:
                self._add_output(node, value)
        self._plan()
        return self.program

    def run(self) -> Program:
        program = self.plan()
        self._schedule()
        program.results = {n: self.slot_of[v] for n, v in self.step.results.items()}
        program.draws = dict(self.step.draws)
        program.packing = self.step.packing
        program.gradients = {
            name: [tuple(self.slot_of[value] for value in node.outputs) for node in nodes]
            for name, nodes in self.step.gradients.items()
        }
        program.layers = self._describe_layers()
        return program

    def _new_slot(self, value: Value, kind: str, base: int = -1) -> int:
        slot = len(self.program.slots)
        self.program.slots.append(Slot(value.type, kind, base=base))
        self.slot_of[value] = slot
        return slot

    def _add_inputs(self) -> None:
        for name, value in self.step.features.items():
            self.program.features[name] = self._new_slot(value, FEATURE)
        for name, value in self.step.variables.items():
            self.program.variables[name] = self._new_slot(value, VARIABLE)
        for node in self.step.graph.nodes:
            if node.op == "constant":
                slot = self._new_slot(node.output, CONSTANT)
                self.program.constants[slot] = node.attrs["value"]

    def _last_uses(self) -> dict[Value, int]:
        """Time of the last read of every value, also through views."""
        last: dict[Value, int] = {}
        end = len(self._nodes)
        ends = list(itertools.accumulate(len(nodes) for nodes in self._groups))
        for value, staged in self._staged.items():
            last[value] = ends[staged.group] - 1  # it is spilled after the group
        for value in self.step.graph.outputs:
            last[value] = end
        for node in reversed(self._nodes):
            time, view = self._time_of[node], is_view(node)
            for i, value in enumerate(node.inputs):
                if self._reads_staged(node, value):
                    continue
                through = time
                if view and i < len(node.outputs):
                    through = last.get(node.outputs[i], time)
                last[value] = max(last.get(value, -1), through, time)
        return last

    def _add_staged(self) -> None:
        for value, staged in self._staged.items():
            slot = len(self.program.slots)
            self.program.slots.append(Slot(value.type, VARIABLE))
            self._staged_slot[value] = self.program.staged[staged.name] = slot

    def _reads_staged(self, node: Node, value: Value) -> bool:
        """Whether a node reads a value that was spilled."""
        return value in self._staged and node in self._staged[value].readers

    def _slot_for(self, node: Node, value: Value) -> int:
        return self._staged_slot[value] if self._reads_staged(node, value) else self.slot_of[value]

    def _updates_in_place(self) -> dict[Value, str]:
        """Values that may overwrite a variable, as nothing reads the old one later.

        They are the variable's update, and what it is made from by ops that change some rows.
        """
        found: dict[Value, str] = {}
        uses = Counter(self.step.updates.values())
        for name, value in self.step.updates.items():
            if value not in found and name not in self.step.blank and uses[value] == 1:
                found.update(dict.fromkeys(self._chain_in_place(name, value), name))
        return found

    def _chain_in_place(self, name: str, value: Value) -> list[Value]:
        """The values that may overwrite a variable in turn; none if its update may not."""
        old, chain = self.step.variables[name], list[Value]()
        while value.type == old.type and (node := value.node) is not None:
            position = lookup(node.op).overwrites
            if node.op != FUSED and position is None:
                break
            chain.append(value)
            over = node.inputs[position] if position is not None else old
            if any(x is not over and viewed(x) in (old, over) for x in node.inputs):
                break
            if self._last.get(over, -1) > self._time_of[node]:
                break
            if over is old:
                return chain if self._last.get(old, -1) <= self._time_of[node] else []
            # A variable is streamed in for one group, so that all must be in the same.
            maker = over.node
            if maker is None or (maker.layer, maker.direction) != (node.layer, node.direction):
                break
            value = over
        return []

    def _add_output(self, node: Node, value: Value) -> None:
        if value in self._in_place:
            name = self._in_place[value]
            self.slot_of[value] = self.program.variables[name]
        elif node.op == GRADIENT:
            self.slot_of[value] = self.slot_of[node.inputs[value.index]]
        elif is_view(node):
            self._new_slot(value, VIEW, base=self._slot_for(node, node.inputs[value.index]))
        elif value.type.is_bounded:
            over = self._written_over(node)
            if over is None:
                self._new_slot(value, ARENA)
            else:
                self.slot_of[value] = over
        else:
            self._new_slot(value, HEAP)

    def _written_over(self, node: Node) -> Optional[int]:
        """The arena slot of an operand that the node may overwrite with its output, or None."""
        position = lookup(node.op).overwrites
        if position is None:
            return None
        old = node.inputs[position]
        slot = self._slot_for(node, old)
        others = [x for i, x in enumerate(node.inputs) if i != position]
        if (
            self.program.slots[slot].kind != ARENA
            or old.type != node.output.type
            or self._last[old] > self._time_of[node]
            or any(self.program.base_of(self._slot_for(node, x)) == slot for x in others)
        ):
            return None
        return slot

    def _plan(self) -> None:
        """Plans offsets of arena slots; a value is alive from its node to its last read."""
        slots, placed = [], set[int]()
        for node in self._nodes:
            if node.op == GRADIENT:  # shares its operand's slot
                continue
            made = self._time_of[node]
            for value in node.outputs:
                slot = self.program.slots[self.slot_of[value]]
                if slot.kind != ARENA:
                    continue
                last = max(self._last.get(value, -1), made)
                if self.slot_of[value] in placed:  # overwrites an operand
                    slot.life = (slot.life[0], last)
                    continue
                placed.add(self.slot_of[value])
                slot.life = (made, last)
                slots.append(slot)
        plan_arena(self.program, slots)

    def _schedule(self) -> None:
        schedule = self.program.schedule
        places = {**self.program.variables, **self.program.staged}
        names = {slot: name for name, slot in places.items()}
        if not self.streaming and names:
            schedule.append(StreamIn(-1, tuple(self.program.variables.values())))
        stores, dead = self._stores_by_time(), self._deaths_by_time()
        time = -1
        for nodes in self._groups:
            times = range(time + 1, time + 1 + len(nodes))
            time = times[-1]
            layer, direction = nodes[0].layer, nodes[0].direction
            touched = [self._slot_for(n, v) for n in nodes for v in [*n.inputs, *n.outputs]]
            used = tuple(dict.fromkeys(slot for slot in touched if slot in names))
            owner = self.owned.of(nodes[0])
            run: list[Entry] = [StreamIn(layer, used)] if self.streaming and used else []
            body, slots = self._body(nodes)
            run.append(Run(layer, direction, body, slots))
            schedule.extend(_on_wafer(owner, run))
            if owner != EVERYWHERE:
                shared = [v for v in self.owned.shared[layer] if v.node in nodes]
                if shared:
                    schedule.append(Share(owner, tuple(self.slot_of[value] for value in shared)))
            done = tuple(store for at in times for store in stores.pop(at, ()))
            schedule.extend(self._stream_out(layer, done))
            freed = [slot for at in times for slot in dead.get(at, ())]
            if self.streaming:
                freed.extend(used)
            if freed:
                schedule.append(Free(tuple(freed)))
        schedule.extend(
            self._stream_out(-1, [store for found in stores.values() for store in found])
        )

    def _stream_out(self, layer: int, stores: Sequence[tuple[str, int]]) -> Iterator[Entry]:
        """The entries that store new values of variables on the wafers that keep them."""
        if self.owned.wafers == 1:
            if stores:
                yield StreamOut(layer, tuple(stores))
            return
        by_wafer: dict[tuple[int, bool], list[tuple[str, int]]] = {}
        for name, slot in stores:
            if name in self.program.staged:  # stored where it is read
                readers = {self.owned.of(node) for node in self._readers_of_staged[name]}
                wafer = readers.pop() if len(readers) == 1 else EVERYWHERE
                by_wafer.setdefault((wafer, False), []).append((name, slot))
                continue
            owner = self.owned.owners.get(name, EVERYWHERE)
            made = self.step.updates[name].node
            maker = EVERYWHERE if made is None else self.owned.of(made)
            is_kept_by_all = owner == EVERYWHERE
            by_wafer.setdefault((maker if is_kept_by_all else owner, is_kept_by_all), []).append(
                (name, slot)
            )
        for (wafer, is_kept_by_all), found in by_wafer.items():
            yield from _on_wafer(wafer, [StreamOut(layer, tuple(found))])
            if is_kept_by_all:  # made equal on all wafers
                yield Share(max(wafer, 0), (), tuple(name for name, _ in found))

    def _stores_by_time(self) -> dict[int, list[tuple[str, int]]]:
        """(variable, slot of its new value) by the earliest time at which it may be stored."""
        found: dict[int, list[tuple[str, int]]] = {}
        for name, value in self.step.updates.items():
            made = -1 if value.node is None else self._time_of.get(value.node, -1)
            time = max(made, self._last.get(self.step.variables[name], -1), 0)
            found.setdefault(time, []).append((name, self.slot_of[value]))
        for value, staged in self._staged.items():
            found.setdefault(self._last[value], []).append((staged.name, self.slot_of[value]))
        return found

    def _deaths_by_time(self) -> dict[int, list[int]]:
        """Heap slots and views by the time of their last read."""
        found: dict[int, list[int]] = {}
        for value, last in self._last.items():
            if value.node is not None and value.node.op != GRADIENT:
                slot = self.slot_of[value]
                if self.program.slots[slot].kind in (HEAP, VIEW):
                    found.setdefault(last, []).append(slot)
        return found

    def _body(self, nodes: list[Node]) -> tuple[int, tuple[int, ...]]:
        """The number of the shared body of a group, and the slots that it runs on."""
        local: dict[int, int] = {}

        def place(slot: int) -> int:
            return local.setdefault(slot, len(local))

        places, key = [], []
        nodes = [node for node in nodes if node.op != GRADIENT]
        for node in nodes:
            inputs = tuple(place(self._slot_for(node, value)) for value in node.inputs)
            outputs = tuple(place(self.slot_of[value]) for value in node.outputs)
            places.append((inputs, outputs))
            types = tuple(value.type for value in [*node.inputs, *node.outputs])
            key.append((node.op, inputs, outputs, _attrs_key(node.attrs), types))
        # Equal types may still be in different kinds of memory, such as views.
        kinds = tuple(self.program.slots[slot].kind for slot in local)
        known = (tuple(key), kinds)
        if known not in self._bodies:
            self._bodies[known] = len(self.program.bodies)
            self.program.bodies.append(
                [self._instruction(node, *at) for node, at in zip(nodes, places)]
            )
        return self._bodies[known], tuple(local)

    def _instruction(
        self, node: Node, inputs: tuple[int, ...], outputs: tuple[int, ...]
    ) -> Instruction:
        attrs = dict(node.attrs)
        structure = lookup(node.op).structure
        if structure is not None and structure.compiles_regions:
            for key, graph in node.subgraphs.items():
                attrs[key] = assemble_region(graph, self.price)
        cost = price_at_bounds(
            self.price,
            node.op,
            [value.type for value in node.inputs],
            [value.type for value in node.outputs],
            attrs,
        )
        return Instruction(node.op, inputs, outputs, attrs, node.source, cost)

    def _describe_layers(self) -> list[Layer]:
        names = {value: name for name, value in self.step.variables.items()}
        used: list[dict[str, None]] = [{} for _ in range(self.layers)]
        state: list[dict[str, None]] = [{} for _ in range(self.layers)]
        owned: set[str] = set()
        for node in self._nodes:
            if 0 <= node.layer < self.layers and node.direction != "update":
                touched = [names[value] for value in node.inputs if value in names]
                used[node.layer].update(dict.fromkeys(n for n in touched if n not in owned))
                owned.update(touched)
        for node in self._nodes:
            if 0 <= node.layer < self.layers and node.direction == "update":
                touched = [names[value] for value in node.inputs if value in names]
                state[node.layer].update(dict.fromkeys(n for n in touched if n not in owned))
                owned.update(touched)
        return [
            Layer(
                self._layer_name(index, list(found)),
                tuple(found),
                self._bytes_of(found),
                tuple(state[index]),
                self._bytes_of(state[index]),
            )
            for index, found in enumerate(used)
        ]

    def _bytes_of(self, names: Iterable[str]) -> int:
        return sum(self.step.variables[name].type.max_bytes for name in names)

    def _layer_name(self, index: int, names: list[str]) -> str:
        """The folder of the layer's largest variable: 'decoder/ffn_1'; 'layer_3' if it has none.

        Of a PyTorch model: the module, up to its number in a list, such as 'bert.encoder.layer.3'.
        """
        if not names:
            return f"layer_{index}"
        largest = max(names, key=lambda name: self.step.variables[name].type.max_bytes)
        if "/" in largest:
            return "/".join(largest.split("/")[:-1][:2])
        *path, _ = largest.split(".")
        number = next((at for at, part in enumerate(path) if part.isdigit()), len(path))
        return ".".join(path[: number + 1]) or largest


def _on_wafer(wafer: int, entries: list[Entry]) -> list[Entry]:
    return entries if wafer == EVERYWHERE else [OnWafer(wafer, len(entries)), *entries]


def _group(nodes: list[Node]) -> list[list[Node]]:
    """Consecutive nodes of one layer and direction."""
    groups: list[list[Node]] = []
    for node in nodes:
        if groups:
            head = groups[-1][0]
            if (head.layer, head.direction) == (node.layer, node.direction):
                groups[-1].append(node)
                continue
        groups.append([node])
    return groups


def plan_arena(program: Program, slots: Sequence[Slot]) -> None:
    """Sets the offsets of arena slots and the size of the arena."""
    lives = [Lifetime(max(slot.type.max_bytes, 1), *slot.life) for slot in slots]
    offsets, program.arena_bytes = plan_memory(lives)
    for slot, offset in zip(slots, offsets):
        slot.offset = offset


def replan(program: Program, bounds: Mapping[str, int], price: Price) -> Program:
    """The same program with memory for larger batches: `bounds` are those of all symbols."""
    larger = program.bounded(bounds, functools.partial(price_at_bounds, price))
    plan_arena(larger, [slot for slot in larger.slots if slot.kind == ARENA])
    return larger


def _attrs_key(attrs: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((key, print_attribute(value)) for key, value in attrs.items())
