"""Which tensor of another program is which variable here, as tables that are read both ways.

A table is a list of rows whose names hold ``{i}`` for the number of a block. Our names number their
layers through the whole model and leave number 0 out: ``{_2i+1}`` is ``_1`` in block 0 and ``_3``
in block 1, ``{_i}`` is nothing in block 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

from modelzoo.common.convert.forms import SAME, TRANSPOSED

_NUMBER = re.compile(r"\{(_?)(\d*)i(?:\+(\d+))?\}")


@dataclass(frozen=True)
class Row:
    """One line of a table.

    `theirs` is the tensor's name, `ours` the names of the variables made of it, `shape` the
    tensor's dimensions as keys of the model's sizes. Rows of the same `group` are all there or
    none of them is, such as those of a head; rows without one are always there.
    """

    theirs: str
    ours: tuple[str, ...]
    shape: str
    form: Any = SAME
    group: Optional[str] = None


@dataclass(frozen=True)
class Link:
    """One tensor there, of static `shape`, and the variables here that are made of it."""

    theirs: str
    ours: tuple[str, ...]
    shape: tuple[int, ...]
    form: Any
    group: Optional[str]

    @property
    def our_shapes(self):
        """Shape by variable name."""
        return dict(zip(self.ours, self.form.our_shapes(self.shape)))


@dataclass(frozen=True)
class Layout:
    """All links of one model.

    `copies` names tensors that may be there twice: a tied output projection and the embedding it
    is tied to. `dropped` are regular expressions of tensors without a counterpart: constants that
    are computed here.
    """

    links: tuple[Link, ...]
    copies: dict[str, str]
    dropped: tuple[str, ...] = ()

    def without_groups(self, names):
        """Returns the layout without the groups that have no tensor or variable in `names`."""
        found = {
            link.group
            for link in self.links
            if link.theirs in names or any(ours in names for ours in link.ours)
        }
        kept = tuple(link for link in self.links if link.group is None or link.group in found)
        theirs = {link.theirs for link in kept}
        copies = {copy: of for copy, of in self.copies.items() if of in theirs}
        return Layout(kept, copies, self.dropped)

    def is_dropped(self, name):
        """Tells whether the tensor of that name has no counterpart."""
        return any(re.fullmatch(pattern, name) for pattern in self.dropped)


@dataclass(frozen=True)
class Architecture:
    """A family of models of another program, and the model of this zoo that it is.

    Attributes:
        name: as their configuration calls it.
        room: model of this zoo.
        layout: function of our parameters, returns a Layout.
        tree: function of their configuration, its path and the names of their tensors; returns
            the nested dictionary of our YAML.
        config: function of our parameters, their path and the names of our variables; returns
            their configuration.
        canonical: function of a tensor's name in a file, returns the name in the table.
        classes: what their configuration calls the models, with which heads ever.
        is_theirs: function of the canonical names of their tensors, tells whether a model whose
            configuration names no class is of these; asked in the order of the program's list.
        is_ours: function of our parameters, tells whether a model of the room becomes one of these.
        files: function of their configuration, returns further files of our model: text by name.
    """

    name: str
    room: str
    layout: Callable
    tree: Callable
    config: Callable
    canonical: Callable
    classes: tuple[str, ...] = ()
    is_theirs: Callable = lambda names: True
    is_ours: Callable = lambda params: True
    files: Callable = lambda config: {}


@dataclass(frozen=True)
class Conversion:
    """What was converted.

    Attributes:
        tensors: their number there.
        weights: their number.
        path: of what was made.
        dropped: names of tensors that were left out.
        left: names of files beside the source that seem to be a tokenizer's, and were not copied.
    """

    tensors: int
    weights: int
    path: str
    dropped: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def dense(theirs, ours, shape, form=TRANSPOSED, bias=True, group=None, ends=(".weight", ".bias")):
    """Returns the rows of a dense layer: a kernel in the given form and, maybe, a bias.

    Args:
        theirs: name of their layer.
        ours: name of our layer, whose last part stands twice; a tuple of names where their layer
            is made of several of ours.
        shape: their weight's dimensions.
        form: how the weight is stored.
        bias: whether there is one.
        group: see Row.
        ends: what their weight and bias are called after the layer's name.
    """
    layers = [_doubled(name) for name in ([ours] if isinstance(ours, str) else ours)]
    kernels = tuple(f"{name}/kernel" for name in layers)
    rows = [Row(theirs + ends[0], kernels, shape, form, group)]
    if bias:
        biases = tuple(f"{name}/bias" for name in layers)
        bias_form = SAME if form is TRANSPOSED else form
        bias_shape = shape.split()[form.output_axis]
        rows.append(Row(theirs + ends[1], biases, bias_shape, bias_form, group))
    return rows


def norm(theirs, ours, group=None, ends=(".weight", ".bias")):
    """Returns the rows of a layer norm over the hidden size N; see `dense` for the arguments."""
    name = _doubled(ours)
    return [
        Row(theirs + ends[0], (f"{name}/gamma",), "N", SAME, group),
        Row(theirs + ends[1], (f"{name}/beta",), "N", SAME, group),
    ]


def expand(rows, sizes, num_blocks):
    """Writes a table out.

    Args:
        rows: rows; those whose names hold ``{i}`` are repeated for every block.
        sizes: number by dimension.
        num_blocks: number of blocks.

    Returns:
        A tuple of Links.
    """
    links = []
    for row in rows:
        for i in range(num_blocks) if _NUMBER.search(row.theirs) else (0,):
            shape = tuple(sizes[key] for key in row.shape.split())
            ours = tuple(_numbered(name, i) for name in row.ours)
            links.append(Link(_numbered(row.theirs, i), ours, shape, row.form, row.group))
    return tuple(links)


def _doubled(name):
    return f"{name}/{name.rpartition('/')[2]}"


def _numbered(name, i):
    def number(match):
        suffix, factor, plus = match.groups()
        value = int(factor or 1) * i + int(plus or 0)
        if not suffix:
            return str(value)
        return f"_{value}" if value else ""

    return _NUMBER.sub(number, name)
