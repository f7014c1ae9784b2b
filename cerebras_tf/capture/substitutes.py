"""What to use instead of TensorFlow operations that have no IR form."""

from __future__ import annotations

from collections.abc import Iterable

_ON_FEATURES = "it on the features in the input function"
_SERIES = "a series or a rational function of tf operations"
_BY_EIGENVALUES = "of a symmetric matrix, functions of the eigenvalues of tf.linalg.eigh"
_BY_SEGMENTS = "tf.math.unsorted_segment_* functions of its values"
_POOLING = "tf.nn.max_pool2d or tf.nn.avg_pool2d"
_GAMMA = "a log-normal or Weibull distribution, or numbers drawn in the input function"
# Operation type -> the usual substitute.
SUBSTITUTES = {
    "BesselJ0": _SERIES,
    "BesselJ1": _SERIES,
    "BesselY0": _SERIES,
    "BesselY1": _SERIES,
    "BlockLSTM": "a cell of tf.compat.v1.nn.rnn_cell",
    "CudnnRNN": "tf.keras.layers.LSTM or GRU",
    "CudnnRNNV3": "tf.keras.layers.LSTM or GRU",
    "Dawsn": _SERIES,
    "DenseBincount": "tf.reduce_sum(tf.one_hot(values, size), 0)",
    "Dilation2D": "tf.image.extract_patches and tf.reduce_max",
    "Eig": "tf.linalg.eigh of a symmetric matrix",
    "Expint": _SERIES,
    "ExtractGlimpse": "tf.image.crop_and_resize",
    "ExtractVolumePatches": "tf.image.extract_patches of the slices",
    "FractionalAvgPool": _POOLING,
    "FractionalMaxPool": _POOLING,
    "FresnelCos": _SERIES,
    "FresnelSin": _SERIES,
    "HSVToRGB": _ON_FEATURES,
    "ImageProjectiveTransformV3": "tf.gather_nd of the four neighbours with bilinear weights",
    "Lu": "tf.linalg.solve, tf.linalg.qr or tf.linalg.slogdet",
    "MatrixLogarithm": _BY_EIGENVALUES,
    "MatrixSquareRoot": _BY_EIGENVALUES,
    "MulNoNan": "tf.where around the product",
    "Multinomial": "tf.argmax(logits - tf.math.log(-tf.math.log(uniform)), -1)",
    "NonMaxSuppressionV3": "tf.nn.top_k of the scores",
    "NthElement": "tf.nn.top_k or tf.sort",
    "ParameterizedTruncatedNormal": "tf.random.truncated_normal, scaled and shifted",
    "QuantizeAndDequantizeV2": "tf.quantization.fake_quant_with_min_max_vars",
    "QuantizeAndDequantizeV3": "tf.quantization.fake_quant_with_min_max_vars",
    "QuantizeAndDequantizeV4": "tf.quantization.fake_quant_with_min_max_vars",
    "RGBToHSV": _ON_FEATURES,
    "RandomGamma": _GAMMA,
    "ScaleAndTranslate": "tf.image.resize without antialias",
    "SparseReduceSum": _BY_SEGMENTS,
    "SparseReorder": "indices in order, as tf.data gives them",
    "SparseSoftmax": _BY_SEGMENTS,
    "SparseToDense": "tf.scatter_nd",
    "Spence": _SERIES,
    "StatelessMultinomial": "tf.argmax(logits - tf.math.log(-tf.math.log(uniform)), -1)",
    "StatelessRandomGammaV2": _GAMMA,
    "StatelessRandomGammaV3": _GAMMA,
    "TensorScatterMax": "tf.maximum with tf.math.unsorted_segment_max",
    "TensorScatterMin": "tf.minimum with tf.math.unsorted_segment_min",
    "TensorStridedSliceUpdate": "tf.tensor_scatter_nd_update, or tf.concat of the parts",
    "TridiagonalMatMul": "tf.matmul with the whole matrix",
    "TridiagonalSolve": "tf.linalg.solve with the whole matrix",
}


def advice(op_types: Iterable[str]) -> str:
    """One sentence for each type that has a usual substitute; general advice for the others."""
    types = list(dict.fromkeys(op_types))
    known = [
        f"Instead of {name}, use {SUBSTITUTES[name]}." for name in types if name in SUBSTITUTES
    ]
    if len(known) < len(types):
        known.append("Rewrite the layer or add them in cerebras_tf/capture/.")
    return " ".join(known)
