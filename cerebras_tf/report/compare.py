"""Comparison of two or more reports, as text and as a page."""

from __future__ import annotations

from collections.abc import Sequence

from cerebras_tf.quantities import seconds
from cerebras_tf.report.markup import escaped
from cerebras_tf.report.page import document, section, table
from cerebras_tf.report.pictures import CAUSES, HOST, drawing, rectangle, text
from cerebras_tf.report.record import Record
from cerebras_tf.user_files import printable

# Rows of the table: name, key, format.
_FIGURES = (
    ("system", "machine", "{}"),
    ("release", "release", "{}"),
    ("mode", "mode", "{}"),
    ("systems", "num_csx", "{}"),
    ("replicas per wafer", "replicas", "{}"),
    ("parameters", "parameters", "{:,}"),
    ("layers", "layers", "{}"),
    ("samples per step", "global_batch", "{:,}"),
    ("micro-batches per step", "micro_batches", "{}"),
    ("tokens per step", "tokens_a_step", "{:,}"),
    ("PFLOP per step", "pflop_a_step", "{:,.3f}"),
    ("seconds per step", "step_s", "{:.4g}"),
    ("steps/s", "steps_per_s", "{:,.4g}"),
    ("samples/s", "samples_per_s", "{:,.2f}"),
    ("tokens/s", "tokens_per_s", "{:,.0f}"),
    ("of the peak", "utilisation", "{:.1%}"),
    ("bound by", "bound", "{}"),
    ("fits", "fits", "{}"),
    ("activations kept, GB", "kept_gb", "{:.1f}"),
    ("activations spilled, GB", "spilled_gb", "{:.1f}"),
    ("blocks recomputed", "recomputes", "{}"),
    ("kJ per step, at most", "energy_kj_at_most", "{:,.1f}"),
)
_RATIOS = ("parameters", "pflop_a_step", "step_s", "samples_per_s", "tokens_per_s")


def rows_of(records: Sequence[Record]) -> list[list[str]]:
    """A row per figure: its name, its value in every report, and ratios to the first report."""
    rows = []
    for name, key, form in _FIGURES:
        row = [name]
        for record in records:
            value = record[key]
            text_of_value = (
                ("yes" if value else "no") if isinstance(value, bool) else form.format(value)
            )
            if key == "fits" and value and record["spilled_gb"]:
                text_of_value = "with spilling"
            if key in _RATIOS and record is not records[0] and records[0][key]:
                text_of_value += f" (x {record[key] / records[0][key]:.3g})"
            row.append(text_of_value)
        rows.append(row)
    return rows


def compare_text(records: Sequence[Record]) -> str:
    """The comparison as text."""
    rows = [["", *(record["name"] for record in records)], *rows_of(records)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append("  ".join(cells))
    return printable("\n".join(lines))


def compare_page(records: Sequence[Record]) -> str:
    """The comparison as a page that opens offline."""
    names = [record["name"] for record in records]
    body = (
        f"<h1>{escaped(' against '.join(names))}</h1>"
        "<p>Predictions of compile reports. In brackets: ratio to the first.</p>"
        + section(
            "Time per token by cause",
            "Predicted seconds per step by cause, divided by the tokens (or samples) per step.",
            _bars(records),
        )
        + section("Figures", "The figures of the reports.", table(["", *names], rows_of(records)))
    )
    return document(" against ".join(names), body)


def _bars(records: Sequence[Record]) -> str:
    units = [record["tokens_a_step"] or record["global_batch"] for record in records]
    colours = {**CAUSES, "host": HOST}
    times = []
    for record, unit in zip(records, units):
        causes = dict(record["seconds_by_cause"])
        causes["host"] = max(0.0, record["step_s"] - sum(causes.values()))
        times.append({cause: value / unit for cause, value in causes.items()})
    longest = max(sum(each.values()) for each in times) or 1.0
    parts, left = [], 240.0
    scale = (960 - left - 90) / longest
    for i, (record, each) in enumerate(zip(records, times)):
        y, x = 34.0 * i, left
        parts.append(text(left - 8, y + 18, record["name"][:34], "end"))
        for cause, colour in colours.items():
            value = each[cause]
            parts.append(rectangle(x, y, value * scale, 26, colour, f"{cause}: {seconds(value)}"))
            x += value * scale
        parts.append(text(x + 6, y + 18, seconds(sum(each.values()))))
    below = 34.0 * len(records) + 16
    for i, (cause, colour) in enumerate(colours.items()):
        parts.append(rectangle(left + 112 * i, below - 11, 14, 14, colour, cause))
        parts.append(text(left + 112 * i + 20, below, cause))
    return drawing(below + 10, parts, "Time per token by cause")
