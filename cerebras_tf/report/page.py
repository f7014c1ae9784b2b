"""The compile report: one HTML file that needs nothing from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from cerebras_tf.quantities import in_words, number, seconds
from cerebras_tf.report import pictures
from cerebras_tf.report.record import embedded, record_of
from cerebras_tf.report.suggestions import sensitivity, suggestions
from cerebras_tf.wafer.prediction import BOUNDS, STREAMING, LayerPrediction, Prediction
from cerebras_tf.wafer.system import GRADES
from cerebras_tf.wafer.validation import Row

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1d2733;margin:0;background:#f4f6f8}
main{max-width:1140px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:26px;margin:8px 0 2px}h2{font-size:19px;margin:0 0 4px}
section{background:#fff;border:1px solid #dde3ea;border-radius:8px;padding:18px 20px;margin:16px 0}
p{margin:4px 0 12px}.note{color:#5b6875;font-size:13.5px}
.cards{display:grid;grid-template-columns:repeat(4,1fr);gap:12px;margin:14px 0}
.card{background:#fff;border:1px solid #dde3ea;border-radius:8px;padding:10px 14px}
.card b{display:block;font-size:22px;font-weight:600}.card span{color:#5b6875;font-size:13px}
.good b{color:#18794e}.bad b{color:#b42318}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th,td{text-align:right;padding:4px 6px;border-bottom:1px solid #e8edf2;vertical-align:top}
th{color:#5b6875;font-weight:600}th:first-child,td:first-child,td.l,th.l{text-align:left}
tr:hover td{background:#f6f9fc}.scroll{overflow-x:auto}
svg{width:100%;height:auto;display:block}svg text{font:12px system-ui,sans-serif;fill:#1d2733}
svg text.light{fill:#fff;font-size:11px}svg text.dark{font-size:11px}
.wafer{fill:#eef2f6;stroke:#8795a3}.place{stroke:#fff;stroke-width:.7}.lane{fill:#f0f3f6}
.axis{stroke:#8795a3}.limit{stroke:#b42318;stroke-dasharray:6 4;stroke-width:1.5}
td{white-space:nowrap}td.w{white-space:normal;min-width:150px}svg.bar{width:160px;height:14px}
li{margin:3px 0}details summary{cursor:pointer;font-weight:600}
code{background:#eef2f6;padding:0 4px;border-radius:3px}
"""


def document(title: str, body: str) -> str:
    """A whole page."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """A table; columns named in `left` hold words, and long ones are wrapped."""

    def cells(tag: str, row: Sequence[str]) -> str:
        told = []
        for i, cell in enumerate(row):
            wraps = " w" if i in left and len(cell) > 40 and "<" not in cell else ""
            kind = f' class="l{wraps}"' if i in left else ""
            told.append(f"<{tag}{kind}>{cell}</{tag}>")
        return "".join(told)

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{cells("th", head)}</tr>{lines}</table></div>'


def section(title: str, note: str, content: str) -> str:
    """A part of the page; the note may hold markup."""
    return f'<section><h2>{title}</h2><p class="note">{note}</p>{content}</section>'


def report_page(found: Prediction, here: Sequence[str], rows: Sequence[Row]) -> str:
    """The report of a prediction.

    Args:
        found: the prediction.
        here: sentences on the same program on this machine.
        rows: measurements with their predictions.
    """
    record = record_of(found)
    name = html.escape(found.workload.name)
    parts = [
        f"<h1>{name}</h1>",
        f"<p>{_introduction(found)}</p>",
        _cards(found),
        _suggestions(found),
        section("Where the time of a step goes", _causes_note(found), pictures.causes_bar(found)),
        *(_streaming_sections(found) if found.mode == STREAMING else []),
        section("Floor plan", floorplan_note(found), pictures.floorplan(found)),
        section("Layers", _layers_note(found), _layers(found)),
        section("Before and between steps", _PHASES_NOTE, _phases(found)),
        section(
            "The same program on this machine",
            "What the emulated wafer of this package takes of the computer that compiled it.",
            "".join(f"<p>{html.escape(line)}</p>" for line in here),
        ),
        section("How far to trust it", _TRUST_NOTE, _measured(rows) + _assumptions(found)),
        embedded(record),
    ]
    return document(f"{found.workload.name}: compile report", "".join(parts))


_PHASES_NOTE = (
    "Users wait for these, too. Derived from two published runs; the time of compiling for a real "
    "system is not published."
)
_TRUST_NOTE = (
    "The machine is data with sources, and every release of its software has one constant, fitted "
    "on the rows marked so; the other rows are predictions. Residual: how far the prediction is "
    "above the measurement."
)


def _introduction(found: Prediction) -> str:
    machine = f"{found.num_csx} {found.machine.name} system{'s' if found.num_csx > 1 else ''}"
    passes = "training" if found.workload.trains else "the forward pass"
    how = (
        "in weight streaming: one layer at a time has the whole wafer while its weights stream past"
        if found.mode == STREAMING
        else "in pipelined mode: every layer has a part of the wafer, and samples flow through"
    )
    return (
        f"A prediction of {passes} on {machine} with software release {found.release.name}, {how}. "
        f"{_pruned(found)}"
        "Nothing here was measured on such a system; the last section says how far predictions of "
        "this kind are from published measurements."
    )


def _pruned(found: Prediction) -> str:
    left_out = 1 - found.workload.density
    if not left_out:
        return ""
    return (
        f"Pruned weights take no cycle, which leaves out {left_out:.1%} of the work with weights. "
    )


def _card(value: str, label: str, kind: str = "") -> str:
    return f'<div class="card {kind}"><b>{value}</b><span>{label}</span></div>'


def _micro_batches(found: Prediction) -> str:
    if found.micro_batches == 1:
        return ""
    return f" and micro-batch, of which a step has {found.micro_batches}"


def _batch(found: Prediction) -> str:
    """What layers' figures are of."""
    parts = found.micro_batches
    return "a step" if parts == 1 else f"one of the {parts} micro-batches of a step"


def _cards(found: Prediction) -> str:
    workload = found.workload
    tokens = found.tokens
    rate = f"{number(found.samples_per_s)} samples/s"
    if tokens:
        rate += f", {number(tokens / found.step_s)} tokens/s"
    fits = (
        _card("fits", "the wafer's memory", "good")
        if not found.faults
        else _card("does not fit", "the wafer's memory", "bad")
    )
    spilled = found.activations.spilled_bytes
    copies = f", {found.replicas} copies a wafer" if found.replicas > 1 else ""
    cards = [
        fits,
        _card(f"{number(found.steps_per_s)} steps/s", rate),
        _card(seconds(found.step_s), "a step"),
        _card(f"{found.utilisation:.1%}", "of the dense 16-bit peak"),
        _card(found.bound, f"bounds it: {BOUNDS[found.bound]}"),
        _card(in_words(workload.parameters), f"parameters, {len(workload.layers)} layers"),
        _card(
            f"{found.global_batch:,}",
            f"samples a step, {workload.batch:,} a system{copies}{_micro_batches(found)}"
            + (f"; {tokens:,} tokens" if tokens else ""),
        ),
        _card(
            f"{spilled / 1e9:.1f} GB",
            "of activations spill to activation servers",
            "bad" if spilled else "good",
        ),
    ]
    return f'<div class="cards">{"".join(cards)}</div>'


def _suggestions(found: Prediction) -> str:
    told = suggestions(found)
    if not told:
        return ""
    items = "".join(f"<li>{html.escape(line)}</li>" for line in told)
    return section("What to try", "Each is a prediction made anew.", f"<ul>{items}</ul>")


def _causes_note(found: Prediction) -> str:
    again = (
        " Blocks are computed twice in the backward pass." if (found.activations.recomputes) else ""
    )
    return (
        "compute: multiply-adds at full width; fabric: sums on their way between cores; sram: work "
        "that is no product; bubbles: starting instructions, filling pipelines; link: weights and "
        "activations that arrive later than the cores could use them; software: what kernels of "
        f"release {found.release.name} take beyond all that, the one fitted constant (efficiency "
        f"{found.machine.efficiency(found.release):.3f}).{again}"
    )


def _streaming_sections(found: Prediction) -> list[str]:
    return [
        section(
            "Streams and compute",
            f"{_batch(found).capitalize()} from left to right: each layer's weights arrive while "
            "it computes, and its gradients leave. Point at a piece to read what it is.",
            pictures.streams(found),
        ),
        section(
            f"Memory over {_batch(found)}",
            "Activations grow in the forward pass and are used up in the backward pass. Weights "
            "never rest on the wafer.",
            pictures.memory_over_time(found),
        ),
    ]


def floorplan_note(found: Prediction) -> str:
    """What a floor plan shows, in words."""
    machine = found.machine
    cores = f"{machine.cores:,} cores, drawn to scale. "
    if found.mode == STREAMING:
        return (
            cores + "Every layer has the whole wafer in its turn. Shown is the one with most work: "
            "its hidden units lie along one axis, the tokens of the batch along the other; where "
            "units leave cores free, further blocks of tokens lie beside the first."
        )
    return (
        cores + "Every layer has a rectangle whose size follows its work, so that the slowest is "
        f"as fast as possible; samples go down the first strip and up the next.{_copies(found)}"
    )


def _copies(found: Prediction) -> str:
    if found.replicas == 1:
        return ""
    return f" {found.replicas} copies of the model lie side by side, each with samples of its own."


def _layers_note(found: Prediction) -> str:
    passes = ", with the second forward pass" if found.activations.recomputes else ""
    return (
        "Layers that are alike stand in one row, with what one of them takes. Colours are those of "
        f"the causes above; times are those of {_batch(found)}{passes}."
    )


def _layers(found: Prediction) -> str:
    work = {layer.name: layer for layer in found.workload.layers}
    groups: dict[tuple[object, ...], list[LayerPrediction]] = {}
    for layer in found.layers:
        # In pipelined mode, rectangles of alike layers differ by a row of cores.
        alike = layer.parameters, work[layer.name].flops, f"{layer.cycles.total:.2e}"
        groups.setdefault((*alike, round(layer.bytes_out)), []).append(layer)
    rows = []
    for members in groups.values():
        layer = members[0]
        name = html.escape(layer.name)
        rows.append(
            [
                f"{name} and {len(members) - 1} more" if len(members) > 1 else name,
                f"{layer.parameters:,}",
                number(work[layer.name].flops / 1e12),
                seconds(layer.cycles.total / found.machine["clock"]),
                pictures.small_bar(layer.cycles),
                number(layer.sram_bytes_per_core / 1e3),
                number(layer.bytes_in / 1e6),
                number(layer.bytes_out / 1e6),
                f"{layer.cores:,}",
                f"{layer.utilisation:.1%}",
            ]
        )
    head = [
        "layer", "parameters", "TFLOP", "time", "by cause", "kB a core", "MB in", "MB out",
        "cores", "of peak",
    ]  # fmt: skip
    return table(head, rows, (0, 4))


def _phases(found: Prediction) -> str:
    rows = []
    for name, (least, most) in found.phases().items():
        many = least != most
        first, last = number(least), number(most)
        told = f"{first} to {last} s" if many else f"about {first} s"
        rows.append([name, told])
    rows.append(["energy of a step, at most", f"{number(found.joules / 1e3)} kJ"])
    return table(["what", "takes"], rows)


def _measured(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        lines.append(
            [
                html.escape(row.name),
                row.mode.replace("weight_", ""),
                row.release,
                str(row.csx),
                f"{row.batch:,}",
                f"{row.rate:,.6g} {row.unit}",
                number(row.predicted),
                f"{row.residual:+.1%}",
                "fitted" if row.fitted else "predicted",
                html.escape(row.about),
            ]
        )
    head = [
        "model", "mode", "release", "systems", "batch", "measured", "predicted", "residual", "",
        "about",
    ]  # fmt: skip
    return table(head, lines, (0, 1, 2, 8, 9))


def _assumptions(found: Prediction) -> str:
    changes = {name: (half, twice) for name, half, twice in sensitivity(found)}
    assumed, facts = [], []
    for quantity in found.machine.quantities.values():
        value, unit = f"{quantity.value:,.6g}", html.escape(quantity.unit)
        source = html.escape(quantity.source)
        if quantity.grade:
            grade = f"{quantity.grade}: {GRADES[quantity.grade]}"
            facts.append([quantity.name, value, unit, grade, source])
            continue
        told = [f"{change:+.1%}" for change in changes.get(quantity.name, ())] or ["", ""]
        assumed.append([quantity.name, value, unit, *told, source])
    head = ["assumption", "value", "unit", "step if halved", "step if doubled", "why"]
    return (
        "<details open><summary>Assumptions: what is not published</summary>"
        f"{table(head, assumed, (0, 2, 5))}</details>"
        "<details><summary>Facts of the machine, with their sources</summary>"
        f"{table(['fact', 'value', 'unit', 'grade', 'source'], facts, (0, 2, 3, 4))}</details>"
    )
