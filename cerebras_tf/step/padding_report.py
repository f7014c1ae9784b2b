"""Says what becomes of padding: what keeps it in, and what leaving it out would save."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Optional

from cerebras_tf.errors import ConfigError, GraphError, PaddingError
from cerebras_tf.ir import Array, StepGraph, TensorType
from cerebras_tf.ir.packing import ROW_OF, ROWS, Packing, feature_name
from cerebras_tf.ir.program import Program
from cerebras_tf.runtime.packing import pack_batch
from cerebras_tf.runtime.sizes import solve_sizes

# A batch with less padding than this share of its tokens is not worth a line.
WORTH_SAYING = 0.05


class PaddingLines:
    """The lines of one step about its padding, each said once."""

    def __init__(self, asked: bool, trains: bool, say: Callable[[str], None]) -> None:
        """Prepares the lines.

        Args:
            asked: whether padding must be left out.
            trains: whether the step trains; others are computed with padding without a word.
            say: writes a line, unless it was written before.
        """
        self._asked, self._trains, self._say = asked, trains, say
        self._told: Optional[Packing] = None

    def compiled(self, step: StepGraph, own_gradients: bool) -> None:
        """Says what keeps padding in.

        Args:
            step: what was compiled, where padding was to be left out if it can be.
            own_gradients: whether it holds TensorFlow's own backward graph.

        Raises:
            ConfigError: padding was to be left out of training.
        """
        kept, self._told = step.padding_kept, step.optional_packing
        if own_gradients and kept:
            kept = (
                "padding is computed: an operation between weights and loss has no gradient rule, "
                "so that TensorFlow's own backward graph runs"
            )
        if not kept:
            return
        if self._asked and self._trains:
            raise ConfigError(
                "use_vsl: what stands at padded places must reach no variable and no result. "
                f"Received: {kept.rstrip('.')}. Set use_vsl to False, or leave it out."
            )
        if self._asked or self._trains:
            self._say(f"{kept.rstrip('.')}; use_vsl: False silences this")

    def ran(self, program: Program, features: Mapping[str, Array]) -> None:
        """Says how much of the first batch is padding that only weights of the loss tell."""
        told, self._told = self._told, None
        if told is None or not self._trains:
            return
        types = {name: TensorType(str(a.dtype), a.shape) for name, a in features.items()}
        sizes = solve_sizes(program, types)
        if sizes is None:
            return
        try:
            derived = pack_batch(told, features, sizes)
        except (PaddingError, GraphError):  # its symbols are none of a program of fixed sizes
            return
        real, places = (
            sum(len(derived[feature_name(space.name, kind)]) for space in told.spaces)
            for kind in (ROWS, ROW_OF)
        )
        share = 1 - real / places
        if share > WORTH_SAYING:
            self._say(
                f"{share:.0%} of the first batch's tokens are padding, by the weights of the loss, "
                "and are computed; use_vsl: True leaves them out, False silences this"
            )
