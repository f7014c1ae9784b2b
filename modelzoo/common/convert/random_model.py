"""Writes a model of random weights in Hugging Face's layout, a tensor at a time."""

import math

import numpy as np

from modelzoo.common.convert.folders import whole_folder
from modelzoo.common.convert.hugging_face import WRITTEN
from modelzoo.common.convert.layout import Conversion
from modelzoo.common.convert.programs import PROGRAMS

STDDEV = 0.02  # GPT-2's


def write_random_model(
    params,
    where,
    output,
    dtype="float32",
    seed=0,
    max_shard_bytes=2 * 10**9,
    overwrite=False,
    advance=None,
):
    """Writes a folder that transformers, and our converter, load.

    Matrices are normal with deviation STDDEV, scales of layer norms are 1, all else is 0.

    Args:
        dtype: type of its weights: float32, float16 or bfloat16.

    Returns:
        A Conversion.
    """
    program = PROGRAMS["hugging_face"]
    architecture = program.architecture_for(params, where)
    links = architecture.layout(params).links
    names = {name for link in links for name in link.ours}
    config = architecture.config(params, where, names)
    shapes = {link.theirs: link.shape for link in links}
    random = np.random.default_rng(seed)

    def tensors():
        for name, shape in shapes.items():
            yield name, _content(name, shape, random)
            if advance is not None:
                advance(math.prod(shape))

    with whole_folder(output, WRITTEN, overwrite) as folder:
        program.write(folder, config, shapes, tensors(), 0, dtype, max_shard_bytes)
    weights = sum(math.prod(shape) for shape in shapes.values())
    return Conversion(len(shapes), weights, str(output))


def _content(name, shape, random):
    if len(shape) > 1:
        content = random.standard_normal(shape, np.float32)
        content *= np.float32(STDDEV)
        return content
    return np.full(shape, 1.0 if name.endswith("weight") else 0.0, np.float32)
