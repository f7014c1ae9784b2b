"""Draws the diagrams of the pages as SVG: step.svg and streaming.svg.

Run it as ``python docs/pictures/make_diagrams.py``; it needs only Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
FILL, LINE, TEXT, HOT = "#eef3f8", "#4a6785", "#1d2b3a", "#f6c667"


def box(x, y, width, height, title, lines: Sequence[str] = (), fill=FILL) -> str:
    """A rectangle with a title and lines of text."""
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" '
        f'stroke="{LINE}"/>',
        label(x + width / 2, y + 20, title, "bold"),
    ]
    parts += [label(x + width / 2, y + 38 + 15 * n, line) for n, line in enumerate(lines)]
    return "".join(parts)


def label(x, y, text, weight="normal", anchor="middle") -> str:
    """A line of text."""
    size = 14 if weight == "bold" else 12
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
        f'fill="{TEXT}">{text}</text>'
    )


def arrow(x1, y1, x2, y2, text="") -> str:
    """An arrow, with a text above its middle."""
    said = label((x1 + x2) / 2, min(y1, y2) - 6, text) if text else ""
    return f'<path d="M{x1} {y1}L{x2} {y2}" stroke="{LINE}" marker-end="url(#tip)"/>{said}'


def write(name: str, width: int, height: int, parts: Sequence[str]) -> None:
    """Writes an SVG on a white ground, so that it can be read on a dark page."""
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        'font-family="Helvetica,Arial,sans-serif"><defs><marker id="tip" markerWidth="9" '
        f'markerHeight="9" refX="8" refY="4" orient="auto"><path d="M0 0L8 4L0 8z" fill="{LINE}"/>'
        f'</marker></defs><rect width="{width}" height="{height}" fill="#ffffff"/>'
        f"{''.join(parts)}</svg>\n"
    )
    (FOLDER / name).write_text(text, encoding="utf-8")


def step() -> None:
    """How a model_fn becomes a program, and how the program runs at every step."""
    stages = [
        ("model_fn", ["your TensorFlow", "Estimator model"]),
        ("capture", ["TensorFlow graph", "to IR"]),
        ("passes", ["fuse, differentiate,", "remove padding"]),
        ("compiler", ["layers, schedule,", "memory plan"]),
    ]
    parts = [label(20, 24, "once", "bold", "start")]
    for number, (title, lines) in enumerate(stages):
        x = 20 + 190 * number
        parts.append(box(x, 38, 150, 66, title, lines))
        if number:
            parts.append(arrow(x - 40, 71, x, 71))
    parts.append(arrow(665, 104, 665, 148))
    parts.append(label(672, 131, "program", anchor="start"))
    parts.append(label(20, 168, "at every step", "bold", "start"))
    parts.append(box(160, 150, 590, 92, "executor"))
    for number, layer in enumerate(("layer 1", "layer 2", "layer 3", "...")):
        x = 180 + 142 * number
        parts.append(box(x, 180, 112, 48, layer, ["run"], HOT))
        if number:
            parts.append(arrow(x - 30, 204, x, 204))
    parts.append(box(160, 286, 590, 50, "store", ["weights, optimizer state: memory or files"]))
    for number in range(3):
        x = 180 + 142 * number
        parts.append(arrow(x + 30, 286, x + 30, 228))
        parts.append(arrow(x + 82, 228, x + 82, 286))
    parts.append(label(606, 268, "stream in, stream out", anchor="start"))
    parts.append(box(20, 196, 100, 50, "batch", ["tf.data"]))
    parts.append(arrow(120, 221, 160, 221))
    parts.append(box(20, 286, 100, 50, "results", ["loss, metrics"]))
    parts.append(arrow(160, 235, 110, 286))
    write("step.svg", 770, 350, parts)


def streaming() -> None:
    """Reading, running and writing of layers over time."""
    rows = ("read", "run", "write")
    parts = [arrow(70, 128, 740, 128), label(740, 146, "time", anchor="end")]
    for row, name in enumerate(rows):
        parts.append(label(60, 36 + 34 * row, name, anchor="end"))
    for layer in range(5):
        for row in range(3):
            x = 76 + 90 * (layer + row)
            if x + 84 < 740:
                fill = HOT if row == 1 else FILL
                parts.append(
                    f'<rect x="{x}" y="{18 + 34 * row}" width="84" height="26" rx="4" '
                    f'fill="{fill}" stroke="{LINE}"/>'
                )
                parts.append(label(x + 42, 36 + 34 * row, f"layer {layer + 1}"))
    write("streaming.svg", 760, 156, parts)


if __name__ == "__main__":
    step()
    streaming()
