"""Draws the plots of docs/performance.md from the figures that `cerebras-tf bench` measured.

Run it as ``python docs/pictures/make_plots.py``; it needs only Python. Every bar is a median of
ratios by round; figures are those of the tables on the page.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TEXT, GRID, COLORS = "#1d2b3a", "#d5dde6", ("#4878a8", "#7fa8cf", "#f0a13c", "#9b9b9b")
PROCESSORS = ("Zen 5", "Zen 4", "Zen 3", "Xeon, AMX")
HOST = {
    "GPT-2, float32": (1.24, 1.12, 1.34, 1.21),
    "BERT, padded to 128": (8.53, 7.56, 11.09, 7.64),
    "BERT, padded to longest": (2.89, 2.49, 3.28, 2.21),
}
PYTORCH = {
    "float32, eager": (3.02, 1.96, 1.38, 1.70),
    "float32, compiled": (2.58, 1.52, 1.17, 1.15),
    "bfloat16, eager": (2.81, 1.88, None, 2.48),
    "bfloat16, compiled": (1.40, 1.21, None, 1.22),
}
DEPTH = {4: (2.62, 2.74), 8: (5.04, 2.79), 16: (9.87, 2.84), 32: (19.54, 3.03), 64: (38.88, 3.06)}


def text(x, y, content, anchor="start", size=12) -> str:
    """A line of text."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}">{content}</text>'


def write(name: str, width: int, height: int, parts: list[str]) -> None:
    """Writes an SVG on a white ground."""
    (FOLDER / name).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'font-family="Helvetica,Arial,sans-serif" fill="{TEXT}"><rect width="{width}" '
        f'height="{height}" fill="#ffffff"/>{"".join(parts)}</svg>\n',
        encoding="utf-8",
    )


def ratios(name: str, title: str, rows: dict) -> None:
    """Bars of ratios, one group a row, one bar a processor, with a line at 1."""
    left, wide, bar = 170, 460, 16
    most = max(value for row in rows.values() for value in row if value)
    parts, y = [text(10, 20, title, size=14)], 36
    for number, processor in enumerate(PROCESSORS):
        x = left + 110 * number
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{COLORS[number]}"/>')
        parts.append(text(x + 17, y + 10, processor))
    y += 26
    for label, row in rows.items():
        shown = [(n, value) for n, value in enumerate(row) if value]
        parts.append(text(left - 8, y + bar * len(shown) / 2 + 4, label, "end"))
        for number, value in shown:
            length = wide * value / most
            parts.append(
                f'<rect x="{left}" y="{y}" width="{length:.0f}" height="{bar - 2}" '
                f'fill="{COLORS[number]}"/>'
            )
            parts.append(text(left + length + 5, y + 11, f"{value:.2f}", size=11))
            y += bar
        y += 14
    one = left + wide / most
    parts.append(f'<path d="M{one:.0f} 58V{y - 8}" stroke="{TEXT}" stroke-dasharray="4 3"/>')
    parts.append(text(one, y + 8, "as fast", "middle", 11))
    write(name, left + wide + 60, y + 16, parts)


def depth() -> None:
    """Peak memory and size of the model's state by the number of layers."""
    left, bottom, wide, high = 60, 250, 520, 200
    parts = [text(10, 20, "GB of memory by number of layers; width of GPT-3 XL", size=14)]
    for value in (0, 10, 20, 30, 40):
        y = bottom - high * value / 40
        parts.append(f'<path d="M{left} {y}H{left + wide}" stroke="{GRID}"/>')
        parts.append(text(left - 8, y + 4, str(value), "end"))
    for number, (layers, (state, peak)) in enumerate(DEPTH.items()):
        x = left + 20 + 100 * number
        for offset, value, color in ((0, state, COLORS[3]), (36, peak * 1.0737, COLORS[0])):
            height = high * value / 40
            parts.append(
                f'<rect x="{x + offset}" y="{bottom - height:.0f}" width="32" '
                f'height="{height:.0f}" fill="{color}"/>'
            )
            parts.append(text(x + offset + 16, bottom - height - 5, f"{value:.1f}", "middle", 11))
        parts.append(text(x + 34, bottom + 18, str(layers), "middle"))
    named = {"weights and optimizer state, on files": COLORS[3], "peak of the process": COLORS[0]}
    for number, (label, color) in enumerate(named.items()):
        x = left + 260 * number
        parts.append(f'<rect x="{x}" y="{bottom + 32}" width="12" height="12" fill="{color}"/>')
        parts.append(text(x + 17, bottom + 42, label))
    write("memory.svg", left + wide + 20, bottom + 56, parts)


if __name__ == "__main__":
    ratios("speed_host.svg", "Speed of the wafer relative to TensorFlow on the host", HOST)
    ratios("speed_pytorch.svg", "Speed of the wafer relative to PyTorch, GPT-2", PYTORCH)
    depth()
