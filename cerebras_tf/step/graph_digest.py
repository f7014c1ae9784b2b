"""Hash of the TensorFlow operations that a step depends on, for the cache of programs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Optional

import tensorflow as tf

from cerebras_tf.capture.order import all_before
from cerebras_tf.frontend.program_cache import code_digest

# Attributes for where and how TensorFlow would run an operation.
_IGNORED = ("_class", "_output_shapes", "_lower_using_switch_merge", "_parallel_iterations")


def graph_digest(
    graph: tf.Graph,
    roots: Iterable[Any],
    fed: Iterable[Any],
    control_inputs: Callable[[Any], Iterable[Any]],
) -> str:
    """Hash of operations and their ancestors, up to the tensors that are fed.

    Args:
        graph: their graph; threads of a session have no default graph.
        control_inputs: those of an operation as model_fn made them.
    """
    found = hashlib.blake2b(code_digest("capture").encode(), digest_size=16)
    stops = {tensor.op for tensor in fed}
    needed = all_before(roots, control_inputs, lambda op: op in stops)
    definition = graph.as_graph_def()
    nodes = {node.name: node for node in definition.node}
    functions = _Functions(definition.library)
    controls = {op.name: sorted(o.name for o in control_inputs(op)) for op in needed}
    for name in sorted(controls):
        found.update(f"{name} {' '.join(controls[name])}\n".encode())
        found.update(functions.digest_of(nodes[name]))
    return found.hexdigest()


def tensor_named(graph: tf.Graph, name: str) -> Optional[Any]:
    """The tensor of a graph with this name; None if there is none."""
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
        """Digest of a node with the functions that it calls, without its control inputs."""
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
