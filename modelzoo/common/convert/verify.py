"""Compares a TensorFlow checkpoint with the model it was converted from or to, bit for bit.

Both sides are read anew; what is compared are the bits of every weight, so that NaN equals NaN, and
0 is not -0.
"""

from __future__ import annotations

import math

import numpy as np

from cerebras_tf.errors import CheckpointError
from modelzoo.common.config.params import load_params
from modelzoo.common.convert.convert import PARAMS
from modelzoo.common.convert.matching import match_ours, match_theirs
from modelzoo.common.convert.programs import PROGRAMS
from modelzoo.common.convert.safetensors_file import DTYPES, narrow, widen
from modelzoo.common.convert.tensorflow_checkpoint import TensorFlowReader

_SHOWN = 10


def verify_weights(
    theirs, ours, program="hugging_face", dtype="float32", advance=None, params_path=None
):
    """Compares all weights.

    Args:
        theirs: folder of the other program's model.
        ours: prefix or folder of the TensorFlow checkpoint.
        program: a key of PROGRAMS.
        dtype: type of the weights there, to which ours are rounded before they are compared.
        advance: called with every number of weights that is done.
        params_path: our YAML; None takes params.yaml beside the checkpoint.

    Returns:
        Number of weights compared.

    Raises:
        CheckpointError: tensors differ, which are named with the largest difference.
    """
    program, checkpoint = PROGRAMS[program], TensorFlowReader(ours)
    reader = program.open(theirs)
    params_path = str(params_path or checkpoint.folder / PARAMS)
    params = load_params(params_path)
    architecture = program.architecture_for(params, params_path)
    layout = architecture.layout(params).without_groups(checkpoint.shapes)
    names = match_theirs(reader, layout, architecture.canonical)
    match_ours(checkpoint, layout)
    faults, count = [], 0
    for link in layout.links:
        faults += _differences(link, reader.read(names[link.theirs]), checkpoint, dtype)
        count += math.prod(link.shape)
        if advance is not None:
            advance(math.prod(link.shape))
    if faults:
        more = [f"... and {len(faults) - _SHOWN} more."] if len(faults) > _SHOWN else []
        advice = "Convert again, or give the --dtype that the other model was written with."
        raise CheckpointError(
            f"{checkpoint.path}: must equal {theirs} bit for bit. Received: {len(faults)} tensors "
            "that differ.\n" + "\n".join([*faults[:_SHOWN], *more, advice])
        )
    return count


def _differences(link, tensor, checkpoint, dtype):
    lines = []
    for name, wanted in zip(link.ours, link.form.to_ours(tensor)):
        found = np.asarray(checkpoint.read(name), np.float32)
        if dtype != "float32":
            found = widen(narrow(found, DTYPES[dtype]), DTYPES[dtype])
        lines += difference(f"{name} ({link.theirs})", found, wanted)
    return lines


def difference(name, found, wanted):
    """Returns a list of one line that tells how two float32 arrays of one shape differ, or none."""
    bits = [np.ascontiguousarray(array).view(np.uint32) for array in (found, wanted)]
    same = bits[0] == bits[1]
    if same.all():
        return []
    with np.errstate(invalid="ignore"):
        largest = np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max()
    return [f"{name}: {same.size - same.sum()} of {same.size} differ, by up to {largest:.3g}."]
