"""The numbers that the features of a record may hold. It reads no file.

While training goes well only masks are looked at, for which no step fails. A step that fails for
such a number, or a wrong mask, names no file: only then are the records searched for it (see
tf_records.find_fault).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from cerebras_tf.errors import DataError
from modelzoo.common.config.model_sections import count_vocabulary


@dataclass(frozen=True)
class Bound:
    """A feature holds numbers from 0 to `below` - 1.

    Attributes:
        mask: a feature that is 1 for the tokens of a record: numbers are places among those.
    """

    below: int
    reason: str
    mask: Optional[str] = None


MASK = Bound(2, "as a mask")


def token_bound(name, section):
    """Returns the Bound of tokens in an input section of that name."""
    key = "vocab_size" if section.vocab_size else "vocab_file"
    return Bound(count_vocabulary(section), f"by {name}.{key}")


def check_bounds(where, values, bounds):
    """Checks the numbers of a record.

    Args:
        bounds: Bounds by feature; features that the record lacks count for nothing.
    """
    for name, bound in bounds.items():
        if name not in values:
            continue
        numbers, below = np.asarray(values[name], np.int64), bound.below
        if bound.mask is not None:
            below = int(np.sum(values[bound.mask]))
        wrong = np.flatnonzero((numbers < 0) | (numbers >= below))
        if len(wrong):
            raise DataError(
                f"{where}: {name} must hold numbers from 0 to {below - 1}, {bound.reason}. "
                f"Received: {numbers[wrong[0]]} at place {wrong[0]}. Correct the record, or name "
                "data that were made for this model."
            )
