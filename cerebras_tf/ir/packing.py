"""How a program that leaves padding out is told, batch by batch, where the real tokens are.

Letters: B sequences, S their padded length, T real tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cerebras_tf.ir.dimensions import Size
from cerebras_tf.ir.graph import Graph

# Where a token space gets its real tokens from.
BIAS = "bias"  # keys that the bias of an attention does not hide; they must stand first
WEIGHTS = "weights"  # each sequence up to its last place of a weight that is not 0
LIST = "list"  # the places of weights that are not 0, wherever they stand

# What a check asks of a value.
ZERO = "zero"  # it is 0 (False) at every padded place
HIDDEN = "hidden"  # at most HIDING at every padded place, 0 or more at one of each sequence
# Each of its numbers is the place b S + s of a real token of the batch; where a layout is given,
# the place s of one of the sequence that its first axis counts.
REAL = "real"
LONGER = "longer"  # every sequence, whose real tokens stand first, has more of them than `number`

# Added to a score, this hides: exp(score + it - max) is 0 in float32 for scores within 9e3.
HIDING = -1e4

# Derived features of a token space, by what they hold; all int32.
ROWS = "rows"  # [T] places b S + s of the real tokens, ascending
OFFSETS = "offsets"  # [B + 1] where each sequence's tokens begin among the real ones, and T
POSITIONS = "positions"  # [T] place s of each real token in its sequence
SEQUENCES = "sequences"  # [T] sequence b of each real token
ROW_OF = "row_of"  # [B S] number of the real token at a place b S + s, -1 for padding
# [B] where each sequence's tokens begin. That token and those behind it are the first places of the
# sequence, except of a LIST.
FIRSTS = "firsts"
DERIVED = (ROWS, OFFSETS, POSITIONS, SEQUENCES, ROW_OF, FIRSTS)


def feature_name(space: str, kind: str) -> str:
    """Name of a derived feature."""
    return f"packing/{space}/{kind}"


@dataclass(frozen=True)
class TokenSpace:
    """The tokens of one mask.

    Attributes:
        name: its symbol T is called `tokens_` and this name.
        dims: B and S.
        kind: one of the kinds above.
        values: positions among the outputs of the graph that the tokens are read from.
    """

    name: str
    dims: tuple[Size, Size]
    kind: str
    values: tuple[int, ...]

    @property
    def symbol(self) -> str:
        """Name of the symbol that is its number of real tokens."""
        return f"tokens_{self.name}"


@dataclass(frozen=True)
class Check:
    """What must hold of a batch, so that leaving padding out changes no number.

    Attributes:
        kind: one of the kinds above.
        space: name of the token space.
        value: position among the outputs of the graph; -1 where none is read.
        layout: axis of the value that counts S, or of REAL holds places s, its first axis counting
            B; 0: one axis counts both, and places are b S + s.
        number: how many real tokens are too few.
        among: name of the token space of the positions that count; "" where all do.
        source: the operation that needs it.
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
    """Everything that is computed of a batch's features before a step without padding.

    Attributes:
        graph: inputs named as features; outputs are what spaces and checks read.
        spaces: the token spaces.
        checks: what the batch must fulfil; else its padded program must run.
    """

    graph: Graph
    spaces: tuple[TokenSpace, ...]
    checks: tuple[Check, ...]

    @property
    def features(self) -> frozenset[str]:
        """Names of the features that are derived, whether a program reads them or not."""
        return frozenset(
            feature_name(space.name, kind) for space in self.spaces for kind in DERIVED
        )

    def changed(self, change: Callable[[Any], Any]) -> Packing:
        """The same with sizes, and attributes that hold sizes, gone through a function."""
        spaces = tuple(replace(space, dims=change(space.dims)) for space in self.spaces)
        return replace(self, graph=change(self.graph), spaces=spaces)
