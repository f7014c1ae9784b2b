"""The one table of tolerances. Entries are (relative, absolute) for float32 unless said.

They follow from float32's unit roundoff, 6e-8, times the length of the sums involved. They are
not loosened to make a test pass.
"""

from __future__ import annotations

TOLERANCES: dict[str, tuple[float, float]] = {
    "elementwise": (2e-6, 1e-7),
    # Forward and gradient in float64, of functions that are computed by series.
    "float64": (1e-9, 1e-11),
    "reduction": (1e-5, 1e-6),
    "matmul": (1e-5, 1e-5),
    "normalization": (1e-5, 1e-5),
    "attention": (2e-5, 1e-5),
    "loss": (1e-5, 1e-6),
    "convolution": (1e-5, 1e-5),
    "gather_scatter": (1e-6, 1e-6),
    "shape": (0.0, 0.0),
    "random": (0.0, 0.0),
    "gradient": (2e-5, 1e-5),
    # A model's loss over 20 steps, and its variables afterwards, wafer against host.
    "training_loss": (1e-5, 0.0),
    "training_variable": (1e-4, 1e-5),
}
