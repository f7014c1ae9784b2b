"""The tables of a profile: by op and by layer, and one sentence on what bounds the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from cerebras_tf.kernels.timeline import Span
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.quantities import counted
from cerebras_tf.runtime.profiler import LOOP_STEP, REMOTE_STEP, WAFER_STEP, Profiler, Timing

MAX_ROWS = 12
_STREAMS = ("stream_in", "stream_out", "share")


class Bounds(NamedTuple):
    """Where the time of a step goes, in seconds a step.

    Attributes:
        arithmetic: kernels that are bound by arithmetic at the measured speeds.
        memory: kernels that are bound by memory.
        streams: moving variables between store and wafer, and waiting for that.
        executor: between kernels: the schedule, packing of the batch, results.
        loop: outside of the wafer: input, TensorFlow's session, hooks.
        arithmetic_limit: seconds of the former at full speed.
        memory_limit: seconds of the latter at full speed.
        network: between the script and a wafer at an address.
    """

    arithmetic: float
    memory: float
    streams: float
    executor: float
    loop: float
    arithmetic_limit: float
    memory_limit: float
    network: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of a whole step."""
        wafer = self.arithmetic + self.memory + self.streams + self.executor
        return wafer + self.network + self.loop


def bounds_of(profiler: Profiler, steps: int, speeds: Speeds) -> Bounds:
    """Where the time of `steps` recorded steps went."""
    parts = {False: 0.0, True: 0.0}
    limits = {False: 0.0, True: 0.0}
    for timing in profiler.timings:
        cost = timing.cost
        moved = cost.bytes_read + cost.bytes_written
        computes = cost.flops / speeds.flops_per_s > moved / speeds.bytes_per_s
        parts[computes] += timing.elapsed_s
        limits[computes] += speeds.seconds(cost)
    spans = profiler.timeline.spans
    loop, wafer = _seconds(spans, [LOOP_STEP]), _seconds(spans, [WAFER_STEP])
    streams = _seconds(spans, _STREAMS)
    there = _seconds(spans, [REMOTE_STEP])
    network = max(wafer - there, 0.0) if there else 0.0
    between = max(wafer - network - streams - parts[True] - parts[False], 0.0)
    seconds = (parts[True], parts[False], streams, between, max(loop - wafer, 0.0))
    return Bounds(*(item / steps for item in (*seconds, limits[True], limits[False], network)))


def _seconds(spans: Iterable[Span], kinds: Sequence[str]) -> float:
    return sum(span.end - span.start for span in spans if span.kind in kinds)


def sentence(bounds: Bounds) -> str:
    """What bounds the step."""
    shares = {
        "arithmetic": bounds.arithmetic,
        "memory": bounds.memory,
        "moving weights": bounds.streams,
        "time between kernels": bounds.executor,
        "network": bounds.network,
        "time outside of the wafer (input, session, hooks)": bounds.loop,
    }
    most = max(shares, key=lambda name: shares[name])
    total = bounds.total
    text = f"The step is bound by {most}, {shares[most] / total:.0%} of its {_ms(total)} ms"
    limit = {"arithmetic": bounds.arithmetic_limit, "memory": bounds.memory_limit}.get(most)
    if limit is not None:
        text += f"; its kernels run at {limit / shares[most]:.0%} of the limit"
    others = [
        f"{name} {share / total:.0%}"
        for name, share in sorted(shares.items(), key=lambda item: -item[1])
        if name != most and share / total >= 0.005
    ]
    return f"{text}; {', '.join(others)}." if others else f"{text}."


def tables(profiler: Profiler, steps: int, speeds: Speeds, library: str) -> str:
    """The tables by op, by layer and of the slowest instructions, per step.

    Args:
        profiler: what was recorded.
        steps: how many steps that was.
        speeds: the limits, measured.
        library: name of the library that multiplies matrices.
    """
    bounds = bounds_of(profiler, steps, speeds)
    limits = f"{speeds.flops_per_s / 1e9:.0f} GFLOP/s, {speeds.bytes_per_s / 1e9:.0f} GB/s"
    head = f"{counted(steps, 'step')} of {_ms(bounds.total)} ms; limits measured here: {limits}"
    head += f" ({library})"
    parts = [
        _table("op", profiler.timings, lambda t: t.item.op, steps, speeds, bounds.total),
        _outside_kernels(bounds),
        _table("layer", profiler.timings, _place, steps, speeds, bounds.total, ordered=True),
        _table("instruction", profiler.timings, _named, steps, speeds, bounds.total),
    ]
    return "\n".join([head, *parts, sentence(bounds)])


def _place(timing: Timing) -> str:
    return f"{timing.layer or 'no layer'}, {timing.direction}"


def _named(timing: Timing) -> str:
    source = timing.item.source
    return f"{timing.item.op} {source if len(source) <= 44 else '..' + source[-42:]}"


def _table(
    what: str,
    timings: Sequence[Timing],
    key: Callable[[Timing], str],
    steps: int,
    speeds: Speeds,
    total: float,
    ordered: bool = False,
) -> str:
    """Rows by key, the slowest first; if `ordered`, in order of their first call."""
    groups: dict[str, list[Timing]] = {}
    for timing in timings:
        groups.setdefault(key(timing), []).append(timing)
    seconds = {name: sum(t.elapsed_s for t in group) for name, group in groups.items()}
    names = sorted(groups, key=lambda name: -seconds[name])[: None if ordered else MAX_ROWS]
    if ordered:
        names = [name for name in groups if name in names]
    width = max((len(name) for name in [*names, what]), default=0)
    titles = ("calls", "ms", "of step", "GFLOP/s", "of limit", "GB/s", "of limit", "threads")
    lines = [what.ljust(width) + "".join(title.rjust(10) for title in titles)]
    for name in names:
        group, spent = groups[name], max(seconds[name], 1e-12)
        flops = sum(t.cost.flops for t in group) / spent
        moved = sum(t.cost.bytes_read + t.cost.bytes_written for t in group) / spent
        cells = (
            f"{len(group) / steps:.4g}",
            _ms(spent / steps),
            f"{spent / steps / total:.1%}",
            f"{flops / 1e9:.1f}",
            f"{flops / speeds.flops_per_s:.0%}",
            f"{moved / 1e9:.1f}",
            f"{moved / speeds.bytes_per_s:.0%}",
            f"{sum(t.cpu_s for t in group) / spent:.1f}",
        )
        lines.append(name.ljust(width) + "".join(cell.rjust(10) for cell in cells))
    if len(names) < len(groups):
        left = sum(seconds.values()) - sum(seconds[name] for name in names)
        share = left / steps / total
        rest = f"{len(groups) - len(names)} others"
        lines.append(rest.ljust(width) + f"{_ms(left / steps):>20}{share:>10.1%}")
    return "\n".join(["", *lines])


def _outside_kernels(bounds: Bounds) -> str:
    rows = (
        ("streams of variables", bounds.streams),
        ("between kernels", bounds.executor),
        *([("network", bounds.network)] if bounds.network else []),
        ("outside of the wafer: input, session, hooks", bounds.loop),
    )
    return "\n".join(
        f"{name:44}{_ms(spent):>8} ms{spent / bounds.total:>8.1%}" for name, spent in rows
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"
