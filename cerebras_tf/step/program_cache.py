"""Programs that were compiled before, found again by the model's graph and the settings.

A file's name has a hash of everything that a program follows from: the TensorFlow operations that
its results need, the types of what is fed, how it was to be compiled, and the compiler itself.
Seeds that TensorFlow draws for a session are no part of it: a program that is found draws anew.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.order import all_before
from cerebras_tf.compiler.pipeline import Options
from cerebras_tf.errors import GraphError
from cerebras_tf.ir.program import Program
from cerebras_tf.ir.program_file import load_origin, load_program, save_program
from cerebras_tf.memoryx.store import Store
from cerebras_tf.ops import lookup

# Rooms whose code decides what a program is.
_COMPILER = ("capture", "compiler", "ir", "kernels", "ops", "passes")
# Attributes that say where and how TensorFlow would run an operation.
_IGNORED = ("_class", "_output_shapes", "_lower_using_switch_merge", "_parallel_iterations")
_DIGITS = 12


@dataclass(frozen=True)
class Origin:
    """What a program was made from and for; stands in its file.

    Attributes:
        key: hash of everything that the program follows from.
        results: names of the values that it returns.
        seed: what random ops without seeds of their own were given.
        fitted: whether activations were fitted into this machine's memory.
        needed_bytes: activations and scratch memory without that.
        planned_bytes: with it.
    """

    key: str
    results: tuple[str, ...]
    seed: int
    fitted: bool
    needed_bytes: int
    planned_bytes: int

    def serves(self, room: Optional[int]) -> bool:
        """Whether the program is what would be compiled for this much memory.

        Args:
            room: bytes that activations may take; None where nothing is fitted.
        """
        if not self.fitted:
            return room is None or self.needed_bytes <= room
        return room is not None and self.planned_bytes <= room < self.needed_bytes


@dataclass(frozen=True)
class Sources:
    """What a program is made from, of one graph.

    Attributes:
        effects: operations whose assignments a step makes.
        tensors: tensors whose values may be wanted, by name.
        fed: tensors that are fed, in order.
        control_inputs: those of an operation as model_fn gave them.
        settings: texts that say how it is to be compiled.
    """

    effects: Sequence[Any]
    tensors: Mapping[str, Any]
    fed: Sequence[Any]
    control_inputs: Callable[[Any], Iterable[Any]]
    settings: tuple[str, ...]

    def key(self, results: Iterable[str], types: Sequence[Any]) -> Optional[str]:
        """Hash of what a program with these results follows from; None where one is unknown.

        Args:
            results: their names; those that are no tensors belong to every program.
            types: types of the fed tensors.
        """
        found = hashlib.blake2b(digest_size=16)
        roots = list(self.effects)
        graph = self.fed[0].graph  # a session's threads have no default graph
        for name in sorted(results):
            found.update(f"{name}\n".encode())
            if ":" not in name:
                continue
            tensor = self.tensors[name] if name in self.tensors else _tensor(graph, name)
            if tensor is None:
                return None
            roots.append(tensor.op)
        fed = {tensor.op for tensor in self.fed}
        for text in (*self.settings, _version(), *map(str, types), *(t.name for t in self.fed)):
            found.update(f"{text}\n".encode())
        needed = all_before(roots, self.control_inputs, lambda op: op in fed)
        definition = graph.as_graph_def()
        nodes = {node.name: node for node in definition.node}
        functions = _Functions(definition.library)
        controls = {op.name: sorted(o.name for o in self.control_inputs(op)) for op in needed}
        for name in sorted(controls):
            found.update(f"{name} {' '.join(controls[name])}\n".encode())
            found.update(functions.digest_of(nodes[name]))
        return found.hexdigest()


def settings_of(options: Options, store: Store, whole: bool, updates: bool) -> tuple[str, ...]:
    """Texts that say how a program is to be compiled.

    Args:
        options: of the compiler.
        store: the variables, whose types may differ from the graph's.
        whole: whether TensorFlow's own backward graph is taken.
        updates: whether a step changes variables.
    """
    return (
        f"streaming={options.streaming} precision={options.precision} fuse={options.fuse}",
        f"keep_float32={options.keep_float32}",
        f"strip={options.strip} restore={options.restore} wafers={options.wafers}",
        f"staging={options.staging} whole={whole} updates={updates}",
        f"sparse={options.sparse}",
        *(str(spec) for _, spec in sorted(store.specs.items())),
    )


def _tensor(graph: tf.Graph, name: str) -> Optional[Any]:
    try:
        return graph.get_tensor_by_name(name)
    except (KeyError, ValueError):
        return None


class _Functions:
    """Digests of operations, in which a function counts by its body: its name counts calls."""

    def __init__(self, library: Any) -> None:
        self._bodies = {body.signature.name: body for body in library.function}
        self._digests: dict[str, bytes] = {}

    def digest_of(self, node: Any) -> bytes:
        """Digest of a node with the functions that it calls, its control inputs left out."""
        found = hashlib.blake2b(digest_size=16)
        inputs = [name for name in node.input if not name.startswith("^")]
        found.update(f"{node.op} {' '.join(inputs)}\n".encode())
        for key in sorted(set(node.attr) - set(_IGNORED)):
            value = node.attr[key]
            called = [value.func] if value.HasField("func") else list(value.list.func)
            if called:
                for function in called:
                    found.update(key.encode() + self._function(function.name))
            else:
                found.update(key.encode() + value.SerializeToString(deterministic=True))
        return found.digest()

    def _function(self, name: str) -> bytes:
        if name not in self._digests:
            found = hashlib.blake2b(digest_size=16)
            body = self._bodies.get(name)
            if body is None:
                found.update(name.encode())
            else:
                for node in body.node_def:
                    found.update(f"{node.name} {sorted(node.input)}".encode())
                    found.update(self.digest_of(node))
                found.update(repr(sorted(body.ret.items())).encode())
                found.update(repr([arg.name for arg in body.signature.input_arg]).encode())
            self._digests[name] = found.digest()
        return self._digests[name]


@functools.lru_cache(maxsize=1)
def _version() -> str:
    """Hash of the code that decides what a program is, and of what it is told of this machine."""
    found = hashlib.blake2b(digest_size=16)
    package = Path(__file__).parents[1]
    for room in _COMPILER:
        for path in sorted((package / room).glob("*.py")):
            found.update(path.read_bytes())
    found.update(f"{np.__version__} {os.cpu_count()}".encode())
    return found.hexdigest()


def name_of_mode(mode: str) -> str:
    """A tf.estimator.ModeKeys in names of files: train, eval or predict."""
    return "predict" if mode == tf.estimator.ModeKeys.PREDICT else mode


class CompiledPrograms:
    """The programs in a folder that were compiled for one mode.

    Args:
        folder: the compile_dir.
        mode: begins the files' names, as in program_train_0123456789ab.zip.
    """

    def __init__(self, folder: str, mode: str) -> None:
        self._folder = Path(folder)
        self._prefix = f"program_{mode}_"

    def find(
        self,
        sources: Sources,
        types: Sequence[Any],
        wanted: Iterable[str],
        room: Optional[int],
        seed: int,
    ) -> Optional[tuple[Program, bool]]:
        """The program that would be compiled now; None where it was not compiled before.

        Whether it was fitted into this machine's memory comes with it.

        Args:
            sources: what it would be made from.
            types: types of the fed tensors.
            wanted: names of values that it must return.
            room: bytes that activations may take.
            seed: what random ops without seeds of their own are given now.
        """
        keys: dict[tuple[str, ...], Optional[str]] = {}
        for path in sorted(self._folder.glob(f"{self._prefix}*.zip")):
            origin = _read_origin(path)
            if origin is None or not origin.serves(room) or set(wanted) - set(origin.results):
                continue
            if origin.results not in keys:
                keys[origin.results] = sources.key(origin.results, types)
            if keys[origin.results] != origin.key:
                continue
            try:
                program = load_program(path)
            except (GraphError, OSError) as error:
                tf.compat.v1.logging.warning("%s; compiling again", error)
                continue
            program.replace_seed(origin.seed, seed, lambda item: lookup(item.op).draws(item.attrs))
            return program, origin.fitted
        return None

    def save(
        self,
        program: Program,
        text: str,
        sources: Sources,
        types: Sequence[Any],
        seed: int,
        needed_bytes: int,
    ) -> Path:
        """Writes a program, its text and what it was made from; returns the program's file.

        Args:
            program: what to save.
            text: of the step that it was made from.
            sources: what it was made from.
            types: types of the fed tensors.
            seed: what random ops without seeds of their own were given.
            needed_bytes: activations and scratch memory before they were fitted into memory.
        """
        results = tuple(sorted(program.results))
        key = sources.key(results, types)
        assert key is not None, "results of a program are tensors of its graph"
        planned = program.arena_bytes + program.scratch_bytes
        fitted = planned < needed_bytes
        origin = Origin(key, results, seed, fitted, needed_bytes, planned)
        self._folder.mkdir(parents=True, exist_ok=True)
        stem = self._folder / f"{self._prefix}{key[:_DIGITS]}"
        stem.with_suffix(".txt").write_text(text + "\n", encoding="utf-8")
        save_program(program, stem.with_suffix(".zip"), asdict(origin))
        return stem.with_suffix(".zip")


def _read_origin(path: Path) -> Optional[Origin]:
    try:
        found = load_origin(path)
        return Origin(**{**found, "results": tuple(found["results"])})
    except (OSError, TypeError, KeyError):
        return None
