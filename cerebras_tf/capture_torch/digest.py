"""Hash of exported graphs, for the cache of compiled programs."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from cerebras_tf.capture_torch.lowering import array_of, source_of


def digest_of_graphs(
    graphs: Iterable[torch.fx.GraphModule],
    constants: Mapping[str, torch.Tensor],
    texts: Iterable[str],
) -> str:
    """Hash of graphs with their constants.

    Args:
        constants: tensors that are constants of the graphs, by name.
        texts: what else a program depends on.
    """
    found = hashlib.blake2b(torch.__version__.encode(), digest_size=16)
    for module in graphs:
        for node in module.graph.nodes:
            found.update(f"{source_of(node)} {node.format_node()} {_types(node)}\n".encode())
            if node.op == "get_attr":
                _add(found, operator.attrgetter(str(node.target))(module))
    for name, tensor in sorted(constants.items()):
        found.update(f"{name}\n".encode())
        _add(found, tensor)
    for text in texts:
        found.update(f"{text}\n".encode())
    return found.hexdigest()


def _types(node: torch.fx.Node) -> str:
    value = node.meta.get("val")
    items = value if isinstance(value, (list, tuple)) else [value]
    return " ".join(
        f"{item.dtype}{list(item.shape)}" if isinstance(item, torch.Tensor) else str(item)
        for item in items
    )


def _add(found: Any, tensor: Any) -> None:
    if isinstance(tensor, torch.Tensor):
        found.update(f"{tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(array_of(tensor).tobytes())
    else:
        found.update(str(tensor).encode())
