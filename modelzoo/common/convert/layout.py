"""How tensors of another program become variables here and back: names, shapes and forms."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from cerebras_tf.errors import CheckpointError


class Form:
    """How one tensor of another program and the variables made of it are related.

    Attributes:
        output_axis: the axis of the tensor that a bias belongs to.
    """

    output_axis = -1

    def our_shapes(self, shape):
        """Returns the shapes of the variables made of a tensor of a shape."""
        raise NotImplementedError

    def to_ours(self, array):
        """Returns the variables made of a tensor, a list."""
        raise NotImplementedError

    def to_theirs(self, arrays):
        """Returns the tensor made of the variables."""
        raise NotImplementedError


@dataclass(frozen=True)
class Same(Form):
    """The variable is the tensor."""

    def our_shapes(self, shape):
        return [tuple(shape)]

    def to_ours(self, array):
        return [array]

    def to_theirs(self, arrays):
        return arrays[0]


@dataclass(frozen=True)
class Transposed(Form):
    """The variable is the transpose: a weight [M, N] of PyTorch is a kernel [N, M]."""

    output_axis = 0

    def our_shapes(self, shape):
        return [tuple(reversed(shape))]

    def to_ours(self, array):
        return [array.T]

    def to_theirs(self, arrays):
        return arrays[0].T


@dataclass(frozen=True)
class Thirds(Form):
    """Queries, keys and values are concatenated along the last axis, as in GPT-2's ``c_attn``."""

    def our_shapes(self, shape):
        return [(*shape[:-1], shape[-1] // 3)] * 3

    def to_ours(self, array):
        return np.split(array, 3, axis=-1)

    def to_theirs(self, arrays):
        return np.concatenate(arrays, axis=-1)


@dataclass(frozen=True)
class FusedHeads(Form):
    """Queries, keys and values alternate head by head, as in GPT-NeoX's ``query_key_value``.

    The weight is [H * 3 * D, N], the bias [H * 3 * D]. Of every head's queries and keys the first
    R features are rotated in pairs. There, the pairs are (j, j + R / 2); here, as in Su et al.
    (RoFormer, 2021, equation 34), they are (2j, 2j + 1). Which is which is a matter of naming:
    with the features put into the other order, the scores are the same.
    """

    heads: int
    rotary_dim: int
    output_axis = 0

    def our_shapes(self, shape):
        return [tuple(reversed((shape[0] // 3, *shape[1:])))] * 3

    def to_ours(self, array):
        fused = array.reshape(self.heads, 3, -1, *array.shape[1:])  # (H, 3, D[, N])
        order = self._order(fused.shape[2])
        parts = (fused[:, 0][:, order], fused[:, 1][:, order], fused[:, 2])
        return [part.reshape(-1, *array.shape[1:]).T for part in parts]

    def to_theirs(self, arrays):
        parts = [array.T.reshape(self.heads, -1, *array.shape[:-1]) for array in arrays]
        back = np.argsort(self._order(parts[0].shape[1]))
        fused = np.stack([parts[0][:, back], parts[1][:, back], parts[2]], axis=1)
        return fused.reshape(-1, *arrays[0].shape[:-1])

    def _order(self, head_size):
        order = np.arange(head_size)
        half = self.rotary_dim // 2
        order[0 : self.rotary_dim : 2] = np.arange(half)
        order[1 : self.rotary_dim : 2] = np.arange(half, self.rotary_dim)
        return order


@dataclass(frozen=True)
class Preceded(Form):
    """The tensor has rows of zeros before those of the variable, which nothing reads."""

    rows: int

    def our_shapes(self, shape):
        return [(shape[0] - self.rows, *shape[1:])]

    def to_ours(self, array):
        return [array[self.rows :]]

    def to_theirs(self, arrays):
        zeros = np.zeros((self.rows, *arrays[0].shape[1:]), arrays[0].dtype)
        return np.concatenate([zeros, arrays[0]])


@dataclass(frozen=True)
class Zeros(Form):
    """The tensor is of zeros, of the given shape, and there is no variable."""

    shape: tuple[int, ...]

    def our_shapes(self, shape):
        return []

    def to_ours(self, array):
        return []

    def to_theirs(self, arrays):
        return np.zeros(self.shape, np.float32)


SAME, TRANSPOSED, THIRDS = Same(), Transposed(), Thirds()


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

    @property
    def weights(self):
        """Number of weights."""
        return sum(math.prod(link.shape) for link in self.links)

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
        layout: function of our parameters, returns a Layout.
        tree: function of their configuration, its path and the names of their tensors; returns
            the nested dictionary of our YAML.
        config: function of our parameters, their path and the names of our variables; returns
            their configuration.
        canonical: function of a tensor's name in a file, returns the name in the table.
        classes: what their configuration calls the models, with which heads ever.
        is_theirs: function of the canonical names of their tensors, returns whether a model whose
            configuration names no class is of these; asked in the order of the program's list.
        is_ours: function of our parameters, returns whether such a model becomes one of these.
        files: function of their configuration, returns further files of our model: text by name.
    """

    name: str
    model_name: str
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
        left: names of files next to the source that were not copied; see folders.CarriedFiles.
        missing: what the other program's model usually has and the source's folder lacks.
    """

    tensors: int
    weights: int
    path: str
    dropped: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def dense(theirs, ours, shape, form=TRANSPOSED, bias=True, group=None, ends=(".weight", ".bias")):
    """Returns the rows of a dense layer: a kernel in the given form and, maybe, a bias.

    Args:
        ours: name of our layer, whose last part is repeated; a tuple of names where their layer
            is made of several of ours.
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


_SHOWN = 8
# Variables of training besides the weights; names of slots begin with their variable's name.
_TRAINING_STATE = re.compile(
    r"(.*/)?(beta[12]_power|global_step|current_loss_scale|steps_since_rescale"
    r"|overflows_since_rescale|accum_step_(counter|costs))|.*_grad_accum_\d+"
    r"|cerebras_tf/random_step(/.*)?|_CHECKPOINTABLE_OBJECT_GRAPH|save_counter/.*"
)


def match_theirs(reader, layout, canonical):
    """Finds the tensors of a layout in a reader of another program.

    Returns:
        Name in the reader by name in the layout, copies included.
    """
    names = {canonical(name): name for name in reader.shapes}
    wanted = {link.theirs: link.shape for link in layout.links}
    allowed = [name for name in names if name in layout.copies or layout.is_dropped(name)]
    shapes = {name: reader.shapes[stored] for name, stored in names.items()}
    _compare(shapes, wanted, allowed, lambda name: reader.where(names[name]), reader.config_path)
    return {name: names[name] for name in names if name in wanted or name in layout.copies}


def match_ours(reader, layout):
    """Checks that a TensorFlow checkpoint holds exactly the variables of a layout.

    Returns the names of the optimizer's variables, which are no weights.
    """
    wanted = {name: shape for link in layout.links for name, shape in link.our_shapes.items()}
    state = [
        name
        for name in reader.shapes
        if _TRAINING_STATE.fullmatch(name) or name.rpartition("/")[0] in wanted
    ]
    _compare(reader.shapes, wanted, state, reader.where, reader.path)
    return state


def _compare(shapes, wanted, allowed, where, whole):
    faults = [f"{whole}: tensor {name} is missing." for name in wanted if name not in shapes]
    for name, shape in shapes.items():
        if name in wanted and tuple(shape) != wanted[name]:
            faults.append(
                f"{where(name)}: tensor {name} must be of shape {list(wanted[name])}. "
                f"Received: {list(shape)}."
            )
        if name not in wanted and name not in allowed:
            faults.append(f"{where(name)}: tensor {name} is not expected.")
    if faults:
        more = len(faults) - _SHOWN
        others = [f"... and {more} more."] if more > 0 else []
        advice = "Tensors and configuration must match. Correct one of them."
        raise CheckpointError("\n".join([*faults[:_SHOWN], *others, advice]))
