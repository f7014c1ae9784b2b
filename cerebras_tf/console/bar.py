"""Progress bars on a terminal, one at a time. Nothing is drawn in a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Optional

from cerebras_tf.console.log import get_logger

_open: list[Any] = []  # the bars, the visible one last


@contextlib.contextmanager
def progress_bar(
    total: Optional[float], unit: str, initial: int = 0, text: Optional[str] = None, **settings: Any
) -> Iterator[Any]:
    """Draws a bar with rate and time left on stderr, if that is a terminal.

    Log lines are written above it. A bar that is already there is hidden meanwhile.

    Example:
        with progress_bar(len(files), "file") as bar:
            for file in files:
                convert(file)
                bar.update()

    Args:
        total: the amount of work; None if unknown, which shows no time left.
        initial: the amount that is already done.
        text: what stands before the bar.
        settings: further arguments of tqdm.

    Yields:
        A tqdm bar, with `update(amount)`.
    """
    from tqdm import tqdm
    from tqdm.contrib.logging import logging_redirect_tqdm

    with contextlib.ExitStack() as stack:
        is_terminal = sys.stderr.isatty()
        if is_terminal:
            stack.enter_context(logging_redirect_tqdm([get_logger()]))
            stack.enter_context(_hidden(_open[-1:]))
        bar = tqdm(
            desc=text,
            total=total,
            initial=initial,
            unit=unit,
            disable=not is_terminal,
            dynamic_ncols=True,
            position=0,
            leave=False,
            **settings,
        )
        stack.callback(bar.close)
        _open.append(bar)
        stack.callback(_open.remove, bar)
        yield bar


@contextlib.contextmanager
def _hidden(bars: list[Any]) -> Iterator[None]:
    """Within: the bars are not drawn."""
    for bar in bars:
        bar.clear()
        bar.disable = True
    try:
        yield
    finally:
        for bar in bars:
            bar.disable = False
            bar.refresh()
