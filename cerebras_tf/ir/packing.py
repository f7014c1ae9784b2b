"""How a program without padding finds the real tokens of a batch.

Letters: B sequences, S their padded length, T real tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cerebras_tf.ir.dimensions import Size
from cerebras_tf.ir.graph import Graph

# What distinguishes real tokens from padding.
BIAS = "bias"  # keys that no mask of an attention hides
WEIGHTS = "weights"  # each sequence up to its last position with a weight that is not 0
LIST = "list"  # the positions of weights that are not 0, in any order

# What a check requires of a value.
ZERO = "zero"  # it is 0 (False) at every padded position
HIDDEN = "hidden"  # at most HIDING at every padded position, 0 or more at one of each sequence
# Each of its numbers is the row b S + s of a real token of the batch; with a layout, the position s
# of one of the sequence that its first axis counts.
REAL = "real"
FIRST = "first"  # the real tokens of every sequence come first
SPAN = "span"  # those of every sequence are within `number` positions

# Added to a score, this hides: exp(score + it - max) is 0 in float32 for scores within 9e3.
HIDING = -1e4

# Derived features of a token space; all int32.
ROWS = "rows"  # [T] rows b S + s of the real tokens, ascending
OFFSETS = "offsets"  # [B + 1] where each sequence begins among the real tokens, and T
POSITIONS = "positions"  # [T] position s of each real token in its sequence
SEQUENCES = "sequences"  # [T] sequence b of each real token
ROW_OF = "row_of"  # [B S] number of the real token at a row b S + s, -1 for padding
DERIVED = (ROWS, OFFSETS, POSITIONS, SEQUENCES, ROW_OF)


def feature_name(space: str, kind: str) -> str:
    """Name of a derived feature."""
    return f"packing/{space}/{kind}"


@dataclass(frozen=True)
class TokenSpace:
    """The real tokens according to one mask.

    Attributes:
        name: a number; the symbol for T is `tokens_` and this name.
        dims: B and S.
        kind: BIAS, WEIGHTS or LIST.
        values: the outputs of the graph that the tokens are read from, by position.
    """

    name: str
    dims: tuple[Size, Size]
    kind: str
    values: tuple[int, ...]

    @property
    def symbol(self) -> str:
        """Name of the symbol T."""
        return f"tokens_{self.name}"


@dataclass(frozen=True)
class Check:
    """What must hold for a batch, so that removing padding changes no number.

    Attributes:
        kind: ZERO, HIDDEN, REAL, FIRST or SPAN.
        value: position among the outputs of the graph; -1 if none is read.
        layout: axis of the value that counts S (of REAL: that holds positions s), its first axis
            counting B; 0: one axis counts both.
        number: of SPAN, how many positions.
        among: of REAL, name of the token space of the positions that count; "" where all do.
    """

    kind: str
    space: str
    value: int = -1
    layout: int = 0
    number: int = 0
    among: str = ""
    source: str = ""


@dataclass(frozen=True)
class Packing:
    """What is computed from a batch's features before a step without padding.

    Attributes:
        graph: its inputs are named as features; spaces and checks read its outputs.
        checks: what the batch must satisfy; else the padded program must run.
    """

    graph: Graph
    spaces: tuple[TokenSpace, ...]
    checks: tuple[Check, ...]

    @property
    def features(self) -> frozenset[str]:
        """Names of all derived features."""
        return frozenset(
            feature_name(space.name, kind) for space in self.spaces for kind in DERIVED
        )

    def changed(self, change: Callable[[Any], Any]) -> Packing:
        """A copy whose sizes, and attributes that hold sizes, are changed by a function."""
        spaces = tuple(replace(space, dims=change(space.dims)) for space in self.spaces)
        return replace(self, graph=change(self.graph), spaces=spaces)
