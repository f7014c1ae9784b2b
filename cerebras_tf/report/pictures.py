"""Pictures of a prediction as SVG, and the floor plan as PNG."""

from __future__ import annotations

import itertools
import math
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Optional

import numpy as np
import numpy.typing as npt

from cerebras_tf.quantities import in_bytes, seconds
from cerebras_tf.report.markup import Markup, escaped
from cerebras_tf.report.schedule import Interval, memory, timeline
from cerebras_tf.wafer.cycles import Cycles
from cerebras_tf.wafer.floorplan import Rectangle
from cerebras_tf.wafer.prediction import Prediction

# Colours of causes, distinct in greyscale and for colour-blind readers.
CAUSES = {
    "compute": "#0b5fa5",
    "fabric": "#2a9d8f",
    "sram": "#8ab17d",
    "bubbles": "#e9c46a",
    "software": "#b8b8b8",
    "link": "#d1495b",
}
HOST = "#222222"  # waiting for the host
KINDS = {
    "forward": "#0b5fa5",
    "recompute": "#7fb2dd",
    "backward": "#e07a1f",
    "stream": "#6d6875",
    "spill": "#d1495b",
}
# Colours of places, on which black text is readable; Paul Tol's schemes bright and light.
PALETTE = ("#77aadd", "#ee8866", "#eedd88", "#99ddff", "#ffaabb", "#44bb99", "#bbcc33", "#aaaa00")
_FREE = "#eef2f6"
_MAX_KINDS = 20
_SMALL_SHARE = 0.25  # of the wafer's memory
_WIDTH = 960
_WAFER_WIDTH = 620


def text(x: float, y: float, content: str, anchor: str = "start", kind: str = "") -> str:
    """A line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">'
        f"{escaped(content)}</text>"
    )


def rectangle(
    x: float, y: float, width: float, height: float, fill: str, title: str, kind: str = ""
) -> str:
    """A rectangle with a tooltip."""
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0):.2f}" height="{height:.2f}" '
        f'fill="{fill}" class="{kind}"><title>{escaped(title)}</title></rect>'
    )


def drawing(height: float, parts: Sequence[str], label: str) -> str:
    """An SVG of the page's width."""
    return Markup(
        f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{escaped(label)}">'
        f"{''.join(parts)}</svg>"
    )


def small_bar(cycles: Cycles) -> str:
    """Shares of the causes in a layer's time, for a table cell."""
    total, at, parts = cycles.total or 1.0, 0.0, []
    for name, value in cycles.as_dict().items():
        share = 160 * value / total
        parts.append(rectangle(at, 0, share, 14, CAUSES[name], f"{name}: {value / total:.1%}"))
        at += share
    return Markup(f'<svg viewBox="0 0 160 14" class="bar">{"".join(parts)}</svg>')


def causes_bar(found: Prediction) -> str:
    """A step's time by cause, as one bar with a legend."""
    clock = found.system["clock"]
    parts, at = [], 0.0
    passes, total = found.micro_batches, found.step_s
    causes = {name: passes * value / clock for name, value in found.cycles.as_dict().items()}
    waiting = total - passes * found.wafer_s
    colours = dict(CAUSES)
    if waiting > 1e-12:
        causes["host"], colours["host"] = waiting, HOST
    for i, (name, value) in enumerate(causes.items()):
        width = _WIDTH * value / total
        label = f"{name}: {seconds(value)}, {value / total:.1%}"
        parts.append(rectangle(at, 0, width, 40, colours[name], label))
        at += width
        x, y = (i % 4) * 240.0, 62 + 22 * (i // 4)
        parts.append(rectangle(x, y - 11, 14, 14, colours[name], label))
        parts.append(text(x + 20, y, label))
    return drawing(62 + 22 * math.ceil(len(causes) / 4), parts, "Time of a step by cause")


def _kind(name: str) -> str:
    """The kind of a layer, by which places of the floor plan are coloured: `ffn` of `ffn_3`.

    Of blocks of tokens of one layer, each has its own colour.
    """
    return name if ", tokens " in name else re.sub(r"^\d+ |[ _]?\d+$", "", name)


def _colours(found: Prediction) -> dict[str, str]:
    """The colour of each kind of place, in the order of the floor plan."""
    kinds = dict.fromkeys(_kind(place.name) for place in found.floorplan)
    return dict(zip(kinds, itertools.cycle(PALETTE)))


def floorplan(found: Prediction) -> str:
    """The wafer to scale, with places coloured by the kind of their layer, and a legend."""
    system, colours = found.system, _colours(found)
    scale = _WAFER_WIDTH / system.columns
    left, top = 80.0, 24.0
    wide, high = system.columns * scale, system.rows * scale
    parts = [f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" class="wafer"/>']
    for place in found.floorplan:
        parts += _place(found, place, colours[_kind(place.name)], left, top)
    for replica in range(found.replicas if found.replicas > 1 else 0):
        places = [place for place in found.floorplan if place.replica == replica]
        x, y = (min(getattr(place, at) for place in places) for at in "xy")
        right = max(place.x + place.width for place in places)
        bottom = max(place.y + place.height for place in places)
        parts.append(
            f'<rect x="{left + x * scale:.1f}" y="{top + y * scale:.1f}" class="replica" '
            f'width="{(right - x) * scale:.1f}" height="{(bottom - y) * scale:.1f}"/>'
        )
    parts.append(text(left, 16, f"{system.columns:,} columns of cores"))
    parts.append(text(left - 8, top + high / 2, f"{system.rows} rows", "end"))
    parts += _floorplan_legend(found, colours, left + wide + 20, top)
    return drawing(top + high + 10, parts, "Floor plan of the wafer")


def _place(
    found: Prediction, place: Rectangle, colour: str, left: float, top: float
) -> Iterator[str]:
    """A place of the floor plan, with its name and the share of the peak if there is space."""
    scale = _WAFER_WIDTH / found.system.columns
    x, y = left + place.x * scale, top + place.y * scale
    width, height = place.width * scale, place.height * scale
    share = f"{place.utilisation:.1%} of peak"
    title = f"{place.name}: {place.width} x {place.height} = {place.cores:,} cores, {share}"
    if found.replicas > 1:
        title = f"replica {place.replica + 1}, {title}"
    yield rectangle(x, y, width, height, colour, title, "place")
    capacity = int(width / 6.2)
    if height > 13 and width > 40:
        name = place.name if len(place.name) <= capacity else place.name[: capacity - 1] + "…"
        both = height > 30 and len(share) <= capacity
        middle = x + width / 2, y + height / 2 + (-3 if both else 4)
        yield text(*middle, name, "middle", "dark")
        if both:
            yield text(middle[0], middle[1] + 15, share, "middle", "dark")


def _floorplan_legend(
    found: Prediction, colours: dict[str, str], x: float, top: float
) -> Iterator[str]:
    """The kinds of places, and the cores that each takes and that are free."""
    cores = dict.fromkeys(colours, 0)
    for place in found.floorplan:
        cores[_kind(place.name)] += place.cores
    free = found.system.rows * found.system.columns - sum(cores.values())
    rows = [(name, colour, cores[name]) for name, colour in colours.items()]
    shown = rows[:_MAX_KINDS]
    if more := rows[_MAX_KINDS:]:
        shown.append((f"{len(more)} more", "none", sum(row[2] for row in more)))
    yield text(x, top + 12, "share of the cores")
    all_cores = found.system.rows * found.system.columns
    for number, (name, colour, count) in enumerate([*shown, ("free", _FREE, free)]):
        y = top + 24 + 24 * number
        label = f"{name}: {count / all_cores:.1%}"
        yield rectangle(x, y, 14, 14, colour, label)
        yield text(x + 20, y + 11, label if len(label) < 37 else f"{label[:20]}…{label[-14:]}")


def _axis(until_s: float, y: float, left: float) -> list[str]:
    """Time marks below a picture."""
    width = _WIDTH - left
    step = 10 ** math.floor(math.log10(until_s)) if until_s > 0 else 1.0
    if until_s / step < 3:
        step /= 5
    elif until_s / step < 6:
        step /= 2
    parts = []
    for i in range(int(until_s / step + 1e-9) + 1):
        x = left + width * i * step / until_s
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 5}" class="axis"/>')
        anchor = "end" if x > _WIDTH - 20 else "middle"
        parts.append(text(x, y + 18, seconds(i * step) if i else "0", anchor))
    return parts


def streams(found: Prediction) -> str:
    """When weights and gradients travel and when the wafer computes."""
    intervals = timeline(found)
    until = max(i.start_s + i.seconds for i in intervals) or 1.0
    left, parts = 110.0, []
    lanes = ("weights in", "wafer", "gradients out")
    for number, lane in enumerate(lanes):
        y = 6.0 + 46 * number
        parts.append(text(left - 8, y + 22, lane, "end"))
        parts.append(f'<rect x="{left}" y="{y}" width="{_WIDTH - left}" height="36" class="lane"/>')
        for item in intervals:
            if item.lane == lane:
                parts.append(_interval(item, left, y, until))
    parts += _axis(until, 6 + 46 * 3, left)
    named = [
        ("forward", "forward"),
        ("recompute", "recomputation"),
        ("backward", "backward"),
        ("stream", "weights and gradients"),
        ("spill", "spilled activations"),
    ]
    shown = {item.kind for item in intervals}
    for i, (kind, name) in enumerate([pair for pair in named if pair[0] in shown]):
        x = left + 170 * i
        parts.append(rectangle(x, 176, 14, 14, KINDS[kind], name))
        parts.append(text(x + 20, 187, name))
    return drawing(196, parts, "Streams and compute over a step")


def _interval(item: Interval, left: float, y: float, until_s: float) -> str:
    scale = (_WIDTH - left) / until_s
    title = f"{item.name}: {seconds(item.seconds)} from {seconds(item.start_s)}"
    x, width = left + item.start_s * scale, item.seconds * scale
    return rectangle(x, y, width, 36, KINDS[item.kind], title, "piece")


def memory_over_time(found: Prediction) -> str:
    """Activations over a step and the wafer's memory."""
    moments, capacity = memory(found), found.system["sram_bytes"]
    until = moments[-1].at_s or 1.0
    left, height = 110.0, 180.0
    peak = max(m.kept_bytes + m.working_bytes + m.spilled_bytes for m in moments)
    # A small model's activations would be a line at the bottom of the wafer's memory.
    is_small = peak < _SMALL_SHARE * capacity
    top = 1.1 * (peak or 1.0 if is_small else max(capacity, peak))
    width = _WIDTH - left

    def x(at: float) -> float:
        return left + width * at / until

    def y(size: float) -> float:
        return 10 + height * (1 - size / top)

    def area(lower: list[float], upper: list[float], colour: str, title: str) -> str:
        points = [f"{x(m.at_s):.1f},{y(u):.1f}" for m, u in zip(moments, upper)]
        points += [f"{x(m.at_s):.1f},{y(v):.1f}" for m, v in zip(moments[::-1], lower[::-1])]
        return (
            f'<polygon points="{" ".join(points)}" fill="{colour}"><title>{title}</title></polygon>'
        )

    zero = [0.0] * len(moments)
    kept = [m.kept_bytes for m in moments]
    kept_and_working = [m.kept_bytes + m.working_bytes for m in moments]
    all_bytes = [m.kept_bytes + m.working_bytes + m.spilled_bytes for m in moments]
    parts = [
        area(zero, kept, "#0b5fa5", "kept on the wafer for the backward pass"),
        area(kept, kept_and_working, "#7fb2dd", "of the running layer"),
        area(kept_and_working, all_bytes, "#d1495b", "on activation servers"),
        text(left - 8, y(peak) + 4, in_bytes(peak), "end"),
        text(left - 8, y(0) + 4, "0", "end"),
    ]
    parts += _capacity_line(capacity, peak, left, None if is_small else y(capacity))
    parts += _axis(until, 10 + height, left)
    named = [("#0b5fa5", "kept on the wafer"), ("#7fb2dd", "running layer")]
    if found.activations.spilled_bytes:
        named.append(("#d1495b", "on activation servers"))
    for i, (colour, name) in enumerate(named):
        parts.append(rectangle(left + 190 * i, height + 42, 14, 14, colour, name))
        parts.append(text(left + 190 * i + 20, height + 53, name))
    return drawing(height + 62, parts, "Activations over a step")


def _capacity_line(capacity: float, peak: float, left: float, y: Optional[float]) -> Iterator[str]:
    """The wafer's memory as a line; without a height, as a note above the picture."""
    if y is None:
        yield text(
            _WIDTH, 10, f"{peak / capacity:.1%} of the wafer's {capacity / 1e9:.0f} GB", "end"
        )
        return
    yield f'<line x1="{left}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" class="limit"/>'
    yield text(_WIDTH, y - 5, f"the wafer's {capacity / 1e9:.0f} GB", "end")


# A font of 5 x 7 pixels: a byte for each column of a character, the lowest bit on top.
_CHARACTERS = " %-./0123456789,_abcdefghijklmnopqrstuvwxyz"
_COLUMNS = bytes.fromhex(
    "000000000023130864620808080808006060000020100804023E5149453E00427F400042615149462141454B31"
    "1814127F1027454545393C4A49493001710905033649494936064949291E005030000040404040402054545478"
    "7F484444383844444420384444487F3854545418087E0901020C5252523E7F0804047800447D40002040443D00"
    "7F1028440000417F40007C041804787C0804047838444444387C14141408081414187C7C080404084854545420"
    "043F4440203C4040207C1C2040201C3C4030403C44281028440C5050503C4464544C44"
)
_EDGE = 255  # white lines between layers
_EMPTY = 238


def floorplan_pixels(found: Prediction) -> npt.NDArray[np.uint8]:
    """uint8 [rows, columns, 3]: one pixel per core, in the report's colours."""
    system, colours = found.system, _colours(found)
    pixels = np.full((system.rows, system.columns, 3), _EMPTY, np.uint8)
    for place in found.floorplan:
        colour = colours[_kind(place.name)]
        inside = pixels[place.y : place.y + place.height, place.x : place.x + place.width]
        inside[:] = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        inside[-1:] = inside[:, -1:] = _EDGE
        _write_name(inside, place.name)
    return pixels


def _write_name(inside: npt.NDArray[np.uint8], name: str) -> None:
    """Writes a name in black into the middle of a place, as large and whole as there is space."""
    shown = [_CHARACTERS.find(letter) for letter in name.lower() if letter in _CHARACTERS]
    shown = shown[: max(inside.shape[1] - 2, 0) // 6]
    columns = [byte for at in shown for byte in (*_COLUMNS[5 * at : 5 * at + 5], 0)]
    if not columns:
        return
    bits = np.array(columns, np.uint8) >> np.arange(7, dtype=np.uint8)[:, None] & 1
    size = min(4, (inside.shape[0] - 2) // 7, (inside.shape[1] - 2) // len(columns))
    if size < 1:
        return
    ink = bits.repeat(size, 0).repeat(size, 1).astype(bool)
    top, left = ((a - b) // 2 for a, b in zip(inside.shape, ink.shape))
    inside[top : top + ink.shape[0], left : left + ink.shape[1]][ink] = 0


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A PNG file of uint8 [height, width, 3] (ISO/IEC 15948)."""
    height, width, _ = pixels.shape

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    lines = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            chunk(b"IDAT", zlib.compress(lines, 9)),
            chunk(b"IEND", b""),
        ]
    )
