"""Where in the user's files an operation was built, for error messages.

It shows one line of the user's, never TensorFlow's own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from cerebras_tf.capture.operations import Operation

_FOREIGN = (
    f"{os.sep}tensorflow{os.sep}",
    f"{os.sep}tensorflow_estimator{os.sep}",
    f"{os.sep}keras{os.sep}",
    f"{os.sep}cerebras_tf{os.sep}",
)
# Parts of a loop of version 1, and loops of version 2: all are While to the user.
_LOOPS = ("While", "StatelessWhile", "Enter", "Exit", "LoopCond", "NextIteration")


def user_line(op: Operation) -> str:
    """ "file.py:41" of the innermost frame outside the frameworks; "" where there is none."""
    try:
        frames = list(op.traceback)
    except AttributeError:  # operations of function bodies keep no traceback
        return ""
    for frame in reversed(frames):
        if not any(part in frame.filename for part in _FOREIGN):
            return f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return ""


def missing_op_report(ops: Sequence[Operation]) -> str:
    """The message for operations without an IR form: types, counts, names, source lines."""
    by_type: dict[str, list[Operation]] = {}
    loops: set[str] = set()
    for op in ops:
        if op.type in _LOOPS:
            # The operations of a version 1 loop share its name scope.
            loop = op.name if "While" in op.type else op.name.rpartition("/")[0]
            if loop not in loops:
                by_type.setdefault("While", []).append(op)
            loops.add(loop)
        else:
            by_type.setdefault(op.type, []).append(op)
    parts = []
    for op_type, found in sorted(by_type.items(), key=lambda item: (-len(item[1]), item[0])):
        line = user_line(found[0])
        where = f", built at {line}" if line else ""
        parts.append(f"{op_type} ({len(found)}x, '{found[0].name}'{where})")
    kinds = "type has" if len(by_type) == 1 else "types have"
    return (
        f"{len(by_type)} TensorFlow op {kinds} no IR form: {', '.join(parts)}. "
        "Rewrite the layer or add them in cerebras_tf/capture/."
    )
