"""The exception classes of the package, except those that derive from TensorFlow's.

Messages have the form *where: what must hold. Received: values. What to do.* Each class also
derives from the builtin that a caller expects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Optional

# A message of another program, with its full stop, before ours.
_FULL_STOPS = re.compile(r"(?<=\w)\.\. ")


class CerebrasError(Exception):
    """Base of every error this package raises on purpose.

    Args:
        *args: as Exception takes them; the first is the message.
        code: short name of a section of `docs/reference/errors.md` with longer advice, such as
            "activation-memory". The message ends with it, in brackets. None: there is no such
            section.
    """

    code: Optional[str] = None

    def __init__(self, *args: Any, code: Optional[str] = None) -> None:
        super().__init__(*args)
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        text = _FULL_STOPS.sub(". ", super().__str__())
        return f"{text} [{self.code}]" if self.code else text


class ConfigError(CerebrasError, ValueError):
    """A key, a flag or an argument is invalid."""


class DataError(CerebrasError, ValueError):
    """Input data is missing, damaged, or does not match the configuration."""


class BoundsError(DataError):
    """An index in the data is out of range, for example a token id or a label."""


class CheckpointError(CerebrasError, ValueError):
    """A checkpoint is missing, damaged, or does not match the model."""


class GraphError(CerebrasError, ValueError):
    """An IR graph breaks an invariant; raised by the verifier, the parser and inference."""


class UnsupportedOpError(CerebrasError, NotImplementedError):
    """The model uses unsupported operations."""


class SizeLimitError(UnsupportedOpError):
    """A batch is larger than the size up to which an operation can be compiled."""

    def __init__(self, message: str, limits: Optional[Mapping[str, int]] = None) -> None:
        super().__init__(message)
        self._limits = limits

    @property
    def limits(self) -> Mapping[str, int]:
        """The largest sizes, by symbol, that the operation can be captured for."""
        if self._limits is None and isinstance(self.__cause__, SizeLimitError):
            return self.__cause__.limits  # raised again, with the operation
        return self._limits or {}


class GradientError(UnsupportedOpError):
    """An operation has no suitable gradient rule."""


class UnknownSizeError(CerebrasError, TypeError):
    """A size that differs from batch to batch was used where a constant is required."""


class PaddingError(CerebrasError, ValueError):
    """Padding cannot be removed without changing results."""


class CapacityError(CerebrasError, MemoryError):
    """The model or the batch does not fit into memory."""


class BatchCapacityError(CapacityError):
    """A batch does not fit into memory; a smaller batch may fit.

    Attributes:
        needed_bytes: minimum number of bytes.
        fixed_bytes: the part of them that does not depend on the batch, such as weights and
            optimizer state.
    """

    def __init__(
        self, message: str, needed_bytes: int, available_bytes: int, fixed_bytes: int = 0
    ) -> None:
        super().__init__(message)
        self.needed_bytes, self.available_bytes = needed_bytes, available_bytes
        self.fixed_bytes = fixed_bytes


class StoreError(CerebrasError, OSError):
    """The files of weights and optimizer state cannot be read or written."""


class SystemUnreachableError(CerebrasError, ConnectionError):
    """No wafer answers at the given address."""


class SwarmError(CerebrasError, ConnectionError):
    """The wafers of a job cannot communicate, or are not in step."""


class NumericsError(CerebrasError, ArithmeticError):
    """Training produced NaN or an infinite value."""
