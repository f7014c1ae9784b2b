"""The kernel tables: PLAIN defines every op in NumPy, COMPILED has faster forms of some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.errors import GraphError, UnsupportedOpError

# fn(*arrays, **attrs) -> array or tuple of arrays, in the order of the op's outputs.
PlainKernel = Callable[..., Any]


class Scratch(NamedTuple):
    """Bytes of scratch memory that one call takes, and that each of its threads takes."""

    shared: int = 0
    per_thread: int = 0


@dataclass(frozen=True)
class CompiledKernel:
    """A fast form of an op.

    Attributes:
        run: fn(*arrays, out=tuple of arrays, **attrs); writes into `out`.
        supports: fn(*types, **attrs) -> bool, on objects with .dtype and .shape; None: always.
        scratch: fn(*types, **attrs) -> Scratch; None: a negligible amount.
        reads_bfloat16: whether operands may be bits of bfloat16, uint16.
        writes_bfloat16: whether results may be.
    """

    run: Callable[..., None]
    supports: Optional[Callable[..., bool]] = None
    scratch: Optional[Callable[..., Scratch]] = None
    reads_bfloat16: bool = False
    writes_bfloat16: bool = False


@dataclass(frozen=True)
class KernelTable:
    """The kernels of one backend.

    Attributes:
        elementwise: compiles the body of a fused op; None: its ops run one by one.
    """

    plain: Mapping[str, PlainKernel]
    compiled: Mapping[str, CompiledKernel]
    elementwise: Optional[Callable[[Any], Callable[..., Any]]] = None


PLAIN: dict[str, PlainKernel] = {}
COMPILED: dict[str, CompiledKernel] = {}


def plain(name: str) -> Callable[[PlainKernel], PlainKernel]:
    """Registers the defining kernel of an op."""

    def add(kernel: PlainKernel) -> PlainKernel:
        if name in PLAIN:
            raise GraphError(
                f"kernel table: an op must have one plain kernel. Received: two of {name}. "
                "Remove one."
            )
        PLAIN[name] = kernel
        return kernel

    return add


def compiled(
    name: str,
    supports: Optional[Callable[..., bool]] = None,
    scratch: Optional[Callable[..., Scratch]] = None,
    reads_bfloat16: bool = False,
    writes_bfloat16: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a fast kernel of an op; see CompiledKernel."""

    def add(kernel: Callable[..., None]) -> Callable[..., None]:
        if name in COMPILED:
            raise GraphError(
                f"kernel table: an op must have one compiled kernel. Received: two of {name}. "
                "Remove one."
            )
        half = reads_bfloat16, writes_bfloat16
        COMPILED[name] = CompiledKernel(kernel, supports, scratch, *half)
        return kernel

    return add


def evaluate(name: str, arrays: Sequence[np.ndarray], attrs: dict[str, Any]) -> tuple[Any, ...]:
    """Runs an op's plain kernel and returns its outputs as a tuple of arrays."""
    if name not in PLAIN:
        raise UnsupportedOpError(
            f"op {name}: must have a plain kernel (cerebras_tf/kernels). Received: none. Add it."
        )
    with np.errstate(all="ignore"):
        result = PLAIN[name](*arrays, **attrs)
    outputs = result if isinstance(result, tuple) else (result,)
    return tuple(np.asarray(output) for output in outputs)
