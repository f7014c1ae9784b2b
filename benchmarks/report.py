"""What `bench` prints and writes: tables, ratios, a JSON file and a plot."""

from __future__ import annotations

import dataclasses
import json
import platform
import statistics
from pathlib import Path
from typing import Any

from benchmarks.turns import Turn
from cerebras_tf.whole_file import write_whole

median = statistics.median
Measured = dict[str, list[Turn]]
MOST_OF_SGEMM = 1.1  # a larger share is explained
BAR, ROW, LEFT, WIDE = 22, 34, 130, 480  # of the plot, in pixels


def print_figures(shape: Any, flops: int, turns: Measured, compared: Any) -> None:
    """Prints medians and ratios.

    Args:
        shape: what was trained.
        flops: operations of a step.
        turns: what was measured, by side.
        compared: pairs of sides whose speeds are compared.
    """
    titles = ("s/step", "CPU s", "tokens/s", "GFLOP/s", "of sgemm", "peak GB", "first s", "loss")
    print(f"\n{'':14}" + "".join(title.rjust(10) for title in titles))
    for side, own in turns.items():
        step_s = _seconds(own)
        cpu_s = median(seconds for turn in own for seconds in turn.cpu_s)
        cells = (
            f"{step_s:.4f}",
            f"{cpu_s:.4f}",
            f"{shape.tokens / step_s:.1f}",
            f"{flops / step_s / 1e9:.1f}",
            f"{share_of_sgemm(flops, own):.0%}",
            f"{max(turn.peak_bytes for turn in own) / 1e9:.2f}",
            f"{own[-1].first_step_s:.1f}",
            f"{own[-1].loss:.6f}",
        )
        print(f"{side:14}" + "".join(cell.rjust(10) for cell in cells))
    speeds = [turn.sgemm / 1e9 for own in turns.values() for turn in own]
    print(f"{'sgemm':44}{median(speeds):10.1f}  ({min(speeds):.1f} to {max(speeds):.1f};", end="")
    print(f" {shape.product} x {shape.product})")
    fast = [side for side, own in turns.items() if share_of_sgemm(flops, own) > MOST_OF_SGEMM]
    if fast:
        print(
            f"more than 100 % of sgemm ({', '.join(fast)}): products in bfloat16, padding that is "
            "not computed, or a computer that was busier while sgemm was measured"
        )
    for side, other in compared:
        if side in turns and other in turns:
            ratios = speedups(turns[side], turns[other])
            shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            found = f"{median(ratios):.2f} times as fast as"
            print(f"{side}: {found} {_named(other)} (by round: {shown})")


def _named(side: str) -> str:
    return side if side.startswith(("torch", "compile")) else f"the {side}"


def _seconds(own: list[Turn]) -> float:
    return median(seconds for turn in own for seconds in turn.step_s)


def share_of_sgemm(flops: int, own: list[Turn]) -> float:
    """Share of the speed of a plain matrix product that a side reached, the median of its turns."""
    return median(flops / median(turn.step_s) / turn.sgemm for turn in own)


def speedups(own: list[Turn], others: list[Turn]) -> list[float]:
    """How many times as fast as another a side is, round by round."""
    return [median(other.step_s) / median(turn.step_s) for turn, other in zip(own, others)]


def print_traffic(memory: list[Turn], files: list[Turn]) -> None:
    """Prints what weights on files cost."""
    ratios = speedups(memory, files)
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"files: {median(ratios):.2f} times the time in memory (by round: {shown})")
    stalled = sum(turn.stalled_s for turn in files)
    step_s = sum(sum(turn.step_s) for turn in files)
    steps = sum(len(turn.step_s) for turn in files)
    moved = sum(turn.moved for turn in files) / steps
    print(f"files: {moved / 1e9:.2f} GB moved per step, {stalled / step_s:.0%} of the time stalled")


def write_json(path: str, shape: Any, flops: int, turns: Measured) -> None:
    """Writes everything that was measured, and where."""
    found = {
        "shape": dataclasses.asdict(shape),
        "flops": flops,
        "processor": processor(),
        "sides": {side: [dataclasses.asdict(turn) for turn in own] for side, own in turns.items()},
    }
    write_whole(path, json.dumps(found, indent=1) + "\n")


def processor() -> str:
    """The processor's name, family and model, as Linux has them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    name, family, model = (
        facts.get(key, "?").strip() for key in ("model name", "cpu family", "model")
    )
    return f"{name}, family {family}, model {model}"


def write_plot(path: str, shape: Any, turns: Measured) -> None:
    """Draws tokens a second of all sides as bars, ranges over steps as lines: an SVG file."""
    rates = {
        side: [shape.tokens / seconds for turn in own for seconds in turn.step_s]
        for side, own in turns.items()
    }
    most = max(max(found) for found in rates.values())
    rows = []
    for number, (side, found) in enumerate(rates.items()):
        top = 30 + ROW * number
        middle, low, high = (LEFT + WIDE * v / most for v in (median(found), *_ends(found)))
        rows.append(
            f'<text x="{LEFT - 8}" y="{top + 15}" text-anchor="end">{side}</text>'
            f'<rect x="{LEFT}" y="{top}" width="{middle - LEFT:.1f}" height="{BAR}" fill="#48a"/>'
            f'<path d="M{low:.1f} {top + BAR // 2}H{high:.1f}" stroke="#202020" stroke-width="2"/>'
            f'<text x="{LEFT + WIDE + 8}" y="{top + 15}">{median(found):,.0f}</text>'
        )
    title = f"tokens per second: {shape.model}, {shape.layers} x {shape.hidden}; {processor()}"
    size = f'width="{LEFT + WIDE + 80}" height="{40 + ROW * len(rows)}"'
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
        f'<text x="10" y="18">{title}</text>{"".join(rows)}</svg>\n'
    )
    write_whole(path, text)


def _ends(found: list[float]) -> tuple[float, float]:
    return min(found), max(found)
