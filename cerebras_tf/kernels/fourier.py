"""The plain kernel of Fourier transforms: NumPy's pocketfft, in float64."""

from __future__ import annotations

import numpy as np

from cerebras_tf.kernels.registry import plain


@plain("fft")
def fft(real, imaginary=None, *, axes, inverse):
    """Real and imaginary part of the transform over some axes."""
    x = real if imaginary is None else real + 1j * imaginary.astype(np.float64)
    found = (np.fft.ifftn if inverse else np.fft.fftn)(x, axes=axes)
    parts = found.real, found.imag
    return tuple(np.ascontiguousarray(part, dtype=real.dtype) for part in parts)
