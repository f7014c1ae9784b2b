"""Holds a checkpoint against a layout: what is missing, of another shape, or not expected.

It reads names and shapes only, so that a checkpoint that does not fit is told of before anything
is written.
"""

from __future__ import annotations

import re

from cerebras_tf.errors import CheckpointError

_SHOWN = 8
# Variables that training keeps besides the weights; slots stand below their variable's name.
_TRAINING_STATE = re.compile(
    r"(.*/)?(beta[12]_power|global_step|current_loss_scale|steps_since_rescale"
    r"|overflows_since_rescale|accum_step_(counter|costs))|.*_grad_accum_\d+"
    r"|cerebras_tf/random_step(/.*)?|_CHECKPOINTABLE_OBJECT_GRAPH|save_counter/.*"
)


def match_theirs(reader, layout, canonical):
    """Finds the tensors of a layout in a reader of another program.

    Args:
        reader: see ``programs``.
        layout: Layout.
        canonical: see Architecture.

    Returns:
        Name in the reader by name in the layout, copies included.

    Raises:
        CheckpointError: the two do not fit; all differences are listed.
    """
    names = {canonical(name): name for name in reader.shapes}
    wanted = {link.theirs: link.shape for link in layout.links}
    allowed = [name for name in names if name in layout.copies or layout.is_dropped(name)]
    shapes = {name: reader.shapes[stored] for name, stored in names.items()}
    _compare(shapes, wanted, allowed, lambda name: reader.where(names[name]), reader.config_path)
    return {name: names[name] for name in names if name in wanted or name in layout.copies}


def match_ours(reader, layout):
    """Checks that a TensorFlow checkpoint holds exactly the variables of a layout.

    Returns:
        The names of the optimizer's variables, which are no weights.

    Raises:
        CheckpointError: the two do not fit; all differences are listed.
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
        rest = [f"... and {more} more."] if more > 0 else []
        advice = "The tensors must be those of the configuration beside them. Correct either."
        raise CheckpointError("\n".join([*faults[:_SHOWN], *rest, advice]))
