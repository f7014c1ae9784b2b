"""The appliance's TensorFlow import names: the same objects as in `cerebras.tf`."""

from __future__ import annotations

from cerebras.names import serve_names

serve_names()
