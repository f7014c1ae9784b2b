"""Ordered step graph -> Program: slots, bodies, schedule and memory plan.

Runs of equal shape share one body. It deliberately changes no node: passes have run before.
"""

from __future__ import annotations

from typing import Any

from cerebras_tf.compiler.memory import Lifetime, plan_memory
from cerebras_tf.ir import Node, StepGraph, Value, most_of
from cerebras_tf.ir.program import (
    ARENA,
    CONSTANT,
    FEATURE,
    HEAP,
    VARIABLE,
    VIEW,
    Free,
    Instruction,
    Layer,
    Program,
    Run,
    Slot,
    StreamIn,
    StreamOut,
)
from cerebras_tf.ir.text import print_attribute
from cerebras_tf.ops import lookup, viewed


def assemble(step: StepGraph, layers: int, streaming: bool) -> Program:
    """Builds the program.

    Args:
        step: nodes in schedule order, each with its layer and direction.
        layers: number of layers.
        streaming: whether weights come and go layer by layer; else all are present throughout.
    """
    return _Assembler(step, layers, streaming).run()


class _Assembler:
    def __init__(self, step: StepGraph, layers: int, streaming: bool) -> None:
        self.step = step
        self.layers = layers
        self.streaming = streaming
        self.program = Program()
        self.slot_of: dict[Value, int] = {}
        self._bodies: dict[Any, int] = {}
        self._nodes = [node for node in step.graph.nodes if node.op != "constant"]
        self._groups = _group(self._nodes)

    def run(self) -> Program:
        program = self.program
        self._add_inputs()
        self._time_of = {node: i for i, node in enumerate(self._nodes)}
        self._last = self._last_uses()
        self._in_place = self._updates_in_place()
        for node in self._nodes:
            for value in node.outputs:
                self._add_output(node, value)
        self._plan()
        self._schedule()
        program.results = {n: self.slot_of[v] for n, v in self.step.results.items()}
        program.layers = self._describe_layers()
        program.flops = sum(_flops(node) for node in self._nodes)
        return program

    def _new_slot(self, value: Value, kind: str, name: str = "", base: int = -1) -> int:
        slot = len(self.program.slots)
        self.program.slots.append(Slot(value.type, kind, name, 0, base))
        self.slot_of[value] = slot
        return slot

    def _add_inputs(self) -> None:
        for name, value in self.step.features.items():
            self.program.features[name] = self._new_slot(value, FEATURE, name)
        for name, value in self.step.variables.items():
            self.program.variables[name] = self._new_slot(value, VARIABLE, name)
        for node in self.step.graph.nodes:
            if node.op == "constant":
                slot = self._new_slot(node.output, CONSTANT)
                self.program.constants[slot] = node.attrs["value"]

    def _last_uses(self) -> dict[Value, int]:
        """Time of the last read of every value, reads through views included."""
        last: dict[Value, int] = {}
        end = len(self._nodes)
        for value in self.step.graph.outputs:
            last[value] = end
        for node in reversed(self._nodes):
            time = self._time_of[node]
            for value in node.inputs:
                through = last.get(node.output, time) if _is_view(node) else time
                last[value] = max(last.get(value, -1), through, time)
        return last

    def _updates_in_place(self) -> dict[Value, str]:
        """Updates that may be written over the variable: nobody reads the old value later."""
        found: dict[Value, str] = {}
        for name, value in self.step.updates.items():
            old, node = self.step.variables[name], value.node
            if node is None or node.op != "fused_elementwise" or value in found:
                continue
            if value.type != old.type or list(self.step.updates.values()).count(value) > 1:
                continue
            elsewhere = any(x is not old and viewed(x) is old for x in node.inputs)
            if self._last.get(old, -1) <= self._time_of[node] and not elsewhere:
                found[value] = name
        return found

    def _add_output(self, node: Node, value: Value) -> None:
        if value in self._in_place:
            name = self._in_place[value]
            self.slot_of[value] = self.program.variables[name]
        elif _is_view(node):
            self._new_slot(value, VIEW, base=self.slot_of[node.inputs[0]])
        elif value.type.is_static:
            self._new_slot(value, ARENA)
        else:
            self._new_slot(value, HEAP)

    def _plan(self) -> None:
        """Offsets of arena slots; a value lives from its node to its last read."""
        values = [v for n in self._nodes for v in n.outputs if self._kind(v) == ARENA]
        lives = [
            Lifetime(
                max(v.type.bytes, 1),
                self._time_of[v.node],  # type: ignore[index]
                max(self._last.get(v, -1), self._time_of[v.node]),  # type: ignore[index]
            )
            for v in values
        ]
        offsets, self.program.arena_bytes = plan_memory(lives)
        for value, offset in zip(values, offsets):
            self.program.slots[self.slot_of[value]].offset = offset

    def _kind(self, value: Value) -> str:
        return self.program.slots[self.slot_of[value]].kind

    def _schedule(self) -> None:
        steps = self.program.steps
        names = {slot: name for name, slot in self.program.variables.items()}
        if not self.streaming:
            steps.append(StreamIn(-1, tuple(self.program.variables.values())))
        pending = {
            name: (self.slot_of[value], self._made_at(value))
            for name, value in self.step.updates.items()
        }
        time = -1
        for nodes in self._groups:
            time += len(nodes)
            layer, direction = nodes[0].layer, nodes[0].direction
            touched = [self.slot_of[v] for n in nodes for v in [*n.inputs, *n.outputs]]
            used = dict.fromkeys(slot for slot in touched if slot in names)
            if self.streaming and used:
                steps.append(StreamIn(layer, tuple(used)))
            body, slots = self._body(nodes)
            steps.append(Run(layer, direction, body, slots))
            done = [
                (name, slot)
                for name, (slot, made) in pending.items()
                if made <= time and self._last.get(self.step.variables[name], -1) <= time
            ]
            for name, _ in done:
                del pending[name]
            if done:
                steps.append(StreamOut(layer, tuple(done)))
            freed = self._dead(nodes, time)
            if self.streaming:
                freed.extend(slot for slot in used)
            if freed:
                steps.append(Free(tuple(freed)))
        if pending:
            steps.append(StreamOut(-1, tuple((n, slot) for n, (slot, _) in pending.items())))

    def _made_at(self, value: Value) -> int:
        return -1 if value.node is None else self._time_of.get(value.node, -1)

    def _dead(self, nodes: list[Node], time: int) -> list[int]:
        """Heap slots and views that nobody reads after a group."""
        start = time - len(nodes)
        found = []
        for value, last in self._last.items():
            if start < last <= time and value.node is not None:
                slot = self.slot_of[value]
                if self.program.slots[slot].kind in (HEAP, VIEW):
                    found.append(slot)
        return found

    def _body(self, nodes: list[Node]) -> tuple[int, tuple[int, ...]]:
        """The shared instruction list of a group, and the slots it runs on."""
        local: dict[int, int] = {}

        def place(value: Value) -> int:
            return local.setdefault(self.slot_of[value], len(local))

        instructions, key = [], []
        for node in nodes:
            inputs = tuple(place(value) for value in node.inputs)
            outputs = tuple(place(value) for value in node.outputs)
            instructions.append(Instruction(node.op, inputs, outputs, node.attrs, node.source))
            types = tuple(str(value.type) for value in [*node.inputs, *node.outputs])
            key.append((node.op, inputs, outputs, _attrs_key(node.attrs), types))
        known = tuple(key)
        if known not in self._bodies:
            self._bodies[known] = len(self.program.bodies)
            self.program.bodies.append(instructions)
        return self._bodies[known], tuple(local)

    def _describe_layers(self) -> list[Layer]:
        names = {value: name for name, value in self.step.variables.items()}
        used: list[list[str]] = [[] for _ in range(self.layers)]
        for node in self._nodes:
            if node.direction != "update" and 0 <= node.layer < self.layers:
                for value in node.inputs:
                    if value in names and names[value] not in used[node.layer]:
                        used[node.layer].append(names[value])
        layers = []
        for index, found in enumerate(used):
            sizes = sum(self.step.variables[name].type.bytes for name in found)
            layers.append(Layer(self._layer_name(index, found), tuple(found), sizes))
        return layers

    def _layer_name(self, index: int, names: list[str]) -> str:
        """The folder of the layer's largest variable: 'decoder/ffn_1', or 'layer_3' without one."""
        if not names:
            return f"layer_{index}"
        largest = max(names, key=lambda name: self.step.variables[name].type.bytes)
        return "/".join(largest.split("/")[:-1][:2]) or largest


def _group(nodes: list[Node]) -> list[list[Node]]:
    """Runs of neighbouring nodes of one layer and direction."""
    groups: list[list[Node]] = []
    for node in nodes:
        if groups:
            head = groups[-1][0]
            if (head.layer, head.direction) == (node.layer, node.direction):
                groups[-1].append(node)
                continue
        groups.append([node])
    return groups


def _is_view(node: Node) -> bool:
    return lookup(node.op).view


def _flops(node: Node) -> int:
    cost = lookup(node.op).flops
    if cost is None or any(not value.type.is_static for value in [*node.inputs, *node.outputs]):
        return 0
    return most_of(cost(node))


def _attrs_key(attrs: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((key, print_attribute(value)) for key, value in attrs.items())
