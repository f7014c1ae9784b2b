"""What ops that are gradients themselves answer when they are differentiated once more.

Fused gradient ops have no rule of their own: an error names them rather than giving zeros.
"""

from __future__ import annotations

from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Node


def missing_second_derivative(node: Node) -> UnsupportedOpError:
    """The error for a gradient taken through a gradient op."""
    return UnsupportedOpError(
        f"op {node.op}: must not be differentiated, it is a gradient already. "
        f"Received: a second derivative through '{node.source}'. "
        "Stop the gradient before it, or write the layer with elementwise ops."
    )
