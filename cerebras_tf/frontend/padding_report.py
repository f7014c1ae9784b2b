"""Reports whether padding is removed: why not, and what removing it would save."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Optional

from cerebras_tf.errors import ConfigError, GraphError, PaddingError
from cerebras_tf.ir import Array, StepGraph, TensorType
from cerebras_tf.ir.packing import ROW_OF, ROWS, Packing, feature_name
from cerebras_tf.ir.program import Program
from cerebras_tf.runtime.packing import pack_batch
from cerebras_tf.runtime.sizes import solve_sizes

# Share of padding in a batch below which nothing is logged.
_LEAST_SHARE = 0.05


class PaddingReport:
    """Logs what happens to the padding of one step.

    Args:
        required: whether `use_vsl` asks for padding removal.
        trains: whether the step trains; nothing is logged for others.
        log: logs a line unless it was logged before.
    """

    def __init__(self, required: bool, trains: bool, log: Callable[[str], None]) -> None:
        self._required, self._trains, self._log = required, trains, log
        self._pending: Optional[Packing] = None

    def on_compiled(self, step: StepGraph, fallback: bool) -> None:
        """Logs why padding is not removed.

        Args:
            step: the step as it was compiled, with padding removal if possible.
            fallback: whether it has the framework's own backward graph.

        Raises:
            ConfigError: training requires padding removal.
        """
        kept, self._pending = step.padding_kept, step.optional_packing
        if fallback and kept:
            kept = (
                "padding is not removed: an operation between weights and loss has no gradient "
                "rule, so TensorFlow's backward graph is used"
            )
        if not kept:
            return
        if self._required and self._trains:
            raise ConfigError(
                "use_vsl: padding must not influence any variable or result. Received: "
                f"{kept.rstrip('.')}. Set use_vsl to False, or remove it."
            )
        if self._required or self._trains:
            self._log(f"{kept.rstrip('.')} (use_vsl: False turns this message off)")

    def on_step(self, program: Program, features: Mapping[str, Array]) -> None:
        """Logs the share of padding in the first batch, where only the loss weights show it."""
        found, self._pending = self._pending, None
        if found is None or not self._trains:
            return
        types = {name: TensorType(str(a.dtype), a.shape) for name, a in features.items()}
        sizes = solve_sizes(program, types)
        if sizes is None:
            return
        try:
            derived = pack_batch(found, features, sizes)
        except (PaddingError, GraphError):  # its symbols are none of a program of fixed sizes
            return
        real, places = (
            sum(len(derived[feature_name(space.name, kind)]) for space in found.spaces)
            for kind in (ROWS, ROW_OF)
        )
        share = 1 - real / places
        if share > _LEAST_SHARE:
            self._log(
                f"{share:.0%} of the first batch's tokens are padding, according to the loss "
                "weights, and are not removed (use_vsl: True removes them, False turns this "
                "message off)"
            )
