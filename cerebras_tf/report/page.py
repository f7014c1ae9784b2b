"""The compile report: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cerebras_tf.quantities import counted, in_bytes, in_words, number, seconds
from cerebras_tf.report import pictures
from cerebras_tf.report.markup import Markup, escaped
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
.good b{color:#18794e}.fair b{color:#9a5b00}.bad b{color:#b42318}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th,td{text-align:right;padding:4px 6px;border-bottom:1px solid #e8edf2;vertical-align:top}
th{color:#5b6875;font-weight:600}th:first-child,td:first-child,td.l,th.l{text-align:left}
tr:hover td{background:#f6f9fc}.scroll{overflow-x:auto}
svg{width:100%;height:auto;display:block}svg text{font:12px system-ui,sans-serif;fill:#1d2733}
svg text.dark{font-size:11px}
.wafer{fill:#eef2f6;stroke:#8795a3}.place{stroke:#fff;stroke-width:.7}.lane{fill:#f0f3f6}
.replica{fill:none;stroke:#1d2733;stroke-width:2}
.axis{stroke:#8795a3}.limit{stroke:#b42318;stroke-dasharray:6 4;stroke-width:1.5}
td{white-space:nowrap}td.w{white-space:normal;min-width:150px}svg.bar{width:160px;height:14px}
li{margin:3px 0}details summary{cursor:pointer;font-weight:600}
code{background:#eef2f6;padding:0 4px;border-radius:3px}
"""


def document(title: str, body: str) -> str:
    """A complete page."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """A table of texts and Markup; columns in `left` hold words, and long ones are wrapped."""

    def cells(tag: str, row: Sequence[str]) -> str:
        lines = []
        for i, cell in enumerate(row):
            wraps = " w" if i in left and len(cell) > 40 and not isinstance(cell, Markup) else ""
            kind = f' class="l{wraps}"' if i in left else ""
            lines.append(f"<{tag}{kind}>{escaped(cell)}</{tag}>")
        return "".join(lines)

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return Markup(f'<div class="scroll"><table><tr>{cells("th", head)}</tr>{lines}</table></div>')


def section(title: str, note: str, content: str) -> str:
    """A section of the page; the content is HTML."""
    return (
        f'<section><h2>{escaped(title)}</h2><p class="note">{escaped(note)}</p>{content}</section>'
    )


def report_page(found: Prediction, here: Sequence[str], rows: Sequence[Row]) -> str:
    """The report of a prediction.

    Args:
        here: sentences on the same program on this computer.
    """
    record = record_of(found)
    parts = [
        f"<h1>{escaped(found.workload.name)}</h1>",
        f"<p>{escaped(_introduction(found))}</p>",
        _cards(found),
        _suggestions(found),
        section("Time of a step by cause", _causes_note(found), pictures.causes_bar(found)),
        *(_streaming_sections(found) if found.mode == STREAMING else []),
        section("Floor plan", floorplan_note(found), pictures.floorplan(found)),
        section("Layers", _layers_note(found), _layers(found)),
        section("Before and between steps", _PHASES_NOTE, _phases(found)),
        section(
            "The same program on this computer",
            "Memory and time on the emulated wafer of this computer.",
            "".join(f"<p>{escaped(line)}</p>" for line in here),
        ),
        section("Accuracy", _TRUST_NOTE, _measured(rows) + _assumptions(found)),
        embedded(record),
    ]
    return document(f"{found.workload.name}: compile report", "".join(parts))


_PHASES_NOTE = (
    "Derived from two published runs. The compile time for a real system is not published."
)
_TRUST_NOTE = (
    "The system is described by data with sources. Every software release has one constant, fitted "
    "on the rows marked as fitted; the other rows are predictions. Residual: relative error of the "
    "prediction, positive if it is above the measurement."
)


def _introduction(found: Prediction) -> str:
    system = counted(found.num_csx, f"{found.system.name} system")
    passes = "training" if found.workload.trains else "the forward pass"
    how = (
        "in weight streaming mode: layers run sequentially on the whole wafer"
        if found.mode == STREAMING
        else "in pipelined mode: every layer has its own part of the wafer"
    )
    return (
        f"A prediction of {passes} on {system} with software release {found.release.name}, {how}. "
        f"{_pruned(found)}"
        "Nothing here was measured on such a system; the last section compares predictions of this "
        "kind with published measurements."
    )


def _pruned(found: Prediction) -> str:
    left_out = 1 - found.workload.density
    if not left_out:
        return ""
    return f"Pruned weights take no cycles, which saves {left_out:.1%} of the work with weights. "


def _card(value: str, label: str, kind: str = "") -> str:
    return f'<div class="card {kind}"><b>{escaped(value)}</b><span>{escaped(label)}</span></div>'


def _micro_batches_note(found: Prediction) -> str:
    if found.micro_batches == 1:
        return ""

    return f" and micro-batch, {found.micro_batches} micro-batches per step"


def _batch(found: Prediction) -> str:
    """What the layers' figures refer to."""
    parts = found.micro_batches
    return "a step" if parts == 1 else f"one of the {parts} micro-batches of a step"


def _cards(found: Prediction) -> str:
    workload = found.workload
    tokens = found.tokens
    rate = f"{number(found.samples_per_s)} samples/s"
    if tokens:
        rate += f", {number(tokens / found.step_s)} tokens/s"
    copies = f", {found.replicas} replicas per wafer" if found.replicas > 1 else ""
    cards = [
        _memory_card(found),
        _card(f"{number(found.steps_per_s)} steps/s", rate),
        _card(seconds(found.step_s), "per step"),
        _card(f"{found.utilisation:.1%}", "of the dense 16-bit peak"),
        _card(found.bound, f"bound by {BOUNDS[found.bound]}"),
        _card(in_words(workload.parameters), f"parameters, {len(workload.layers)} layers"),
        _card(
            f"{found.global_batch:,}",
            f"samples per step, {workload.batch:,} per system{copies}{_micro_batches_note(found)}"
            + (f"; {tokens:,} tokens" if tokens else ""),
        ),
        _used_card(found),
    ]
    return f'<div class="cards">{"".join(cards)}</div>'


def _memory_card(found: Prediction) -> str:
    """Whether the model fits into the wafer's memory."""
    if found.faults:
        return _card("does not fit", "the wafer's memory", "bad")
    if not found.activations.spilled_bytes:
        return _card("fits", "the wafer's memory", "good")
    spilled = in_bytes(found.activations.spilled_bytes)
    label = f"the wafer's memory: {spilled} of activations go to activation servers"
    return _card("spills", label, "fair")


def _used_card(found: Prediction) -> str:
    """The memory that a batch uses: on the wafer, or on the core that uses most."""
    system = found.system
    if found.mode == STREAMING:
        plan = found.activations
        used = in_bytes(plan.kept_bytes + plan.working_bytes - plan.spilled_bytes)
        return _card(used, f"for activations on the wafer, of {in_bytes(system['sram_bytes'])}")
    most = max(layer.sram_bytes_per_core for layer in found.layers)
    share = in_bytes(system["sram_bytes"] / system["cores"])
    return _card(in_bytes(most), f"of a core's {share}, at most")


def _suggestions(found: Prediction) -> str:
    lines = suggestions(found)
    if not lines:
        return ""
    items = "".join(f"<li>{escaped(line)}</li>" for line in lines)
    return section("Suggestions", "Each is a new prediction.", f"<ul>{items}</ul>")


def _causes_note(found: Prediction) -> str:
    recomputation = " The backward pass recomputes blocks." if found.activations.recomputes else ""
    return (
        "compute: multiply-adds at full width; fabric: sums that travel between cores; sram: work "
        "other than products; bubbles: starting instructions, filling pipelines; link: waiting for "
        "weights and activations; software: what kernels of release "
        f"{found.release.name} take in addition, the one fitted constant (efficiency "
        f"{found.system.efficiency(found.release):.3f}).{recomputation}"
    )


def _streaming_sections(found: Prediction) -> list[str]:
    return [
        section(
            "Streams and compute",
            f"{_batch(found).capitalize()} from left to right: each layer's weights arrive while "
            "it computes, and its gradients leave. Hover over an interval for details.",
            pictures.streams(found),
        ),
        section(
            f"Memory over {_batch(found)}",
            "Activations grow in the forward pass and are freed in the backward pass. Weights are "
            "not stored on the wafer.",
            pictures.memory_over_time(found),
        ),
    ]


def floorplan_note(found: Prediction) -> str:
    """Describes a floor plan."""
    system = found.system
    cores = f"{system.cores:,} cores, drawn to scale. "
    if found.mode == STREAMING:
        return (
            cores
            + "Every layer runs on the whole wafer. The layer with most work is shown: hidden "
            "units lie along one axis, tokens of the batch along the other; if units leave cores "
            "free, further blocks of tokens lie next to the first, in other colours."
        )
    return (
        cores
        + "Every layer has a rectangle whose size follows its work, so that the slowest is as "
        "fast as possible. Equal layers have the same colour. Samples go down the first strip and "
        "up the next." + _replicas_note(found)
    )


def _replicas_note(found: Prediction) -> str:
    if found.replicas == 1:
        return ""
    return f" The wafer contains {found.replicas} replicas of the model, each with its own samples."


def _layers_note(found: Prediction) -> str:

    passes = ", including recomputation" if found.activations.recomputes else ""
    return (
        "Equal layers share a row with the figures of one of them. Colours are those of the causes "
        f"above; times are those of {_batch(found)}{passes}."
    )


def _layers(found: Prediction) -> str:
    work = {layer.name: layer for layer in found.workload.layers}
    groups: dict[tuple[object, ...], list[LayerPrediction]] = {}
    for layer in found.layers:
        # In pipelined mode, rectangles of equal layers differ by a row of cores.
        alike = layer.parameters, work[layer.name].flops, f"{layer.cycles.total:.2e}"
        groups.setdefault((*alike, round(layer.bytes_out)), []).append(layer)
    rows = []
    for members in groups.values():
        layer = members[0]
        name = layer.name
        rows.append(
            [
                f"{name} and {len(members) - 1} more" if len(members) > 1 else name,
                f"{layer.parameters:,}",
                number(work[layer.name].flops / 1e12),
                seconds(layer.cycles.total / found.system["clock"]),
                pictures.small_bar(layer.cycles),
                number(layer.sram_bytes_per_core / 1e3),
                number(layer.bytes_in / 1e6),
                number(layer.bytes_out / 1e6),
                f"{layer.cores:,}",
                f"{layer.utilisation:.1%}",
            ]
        )
    head = [
        "layer", "parameters", "TFLOP", "time", "by cause", "kB per core", "MB in", "MB out",
        "cores", "of peak",
    ]  # fmt: skip
    return table(head, rows, (0, 4))


def _phases(found: Prediction) -> str:
    rows = []
    for name, (least, most) in found.phases().items():
        many = least != most
        first, last = number(least), number(most)
        lines = f"{first} to {last} s" if many else f"about {first} s"
        rows.append([name, lines])

    rows.append(["energy per step, at most", f"{number(found.joules / 1e3)} kJ"])
    return table(["what", "takes"], rows)


def _measured(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        lines.append(
            [
                row.name,
                row.mode.replace("weight_", ""),
                row.release,
                str(row.csx),
                f"{row.batch:,}",
                f"{row.rate:,.6g} {row.unit}",
                number(row.predicted),
                f"{row.residual:+.1%}",
                "fitted" if row.fitted else "predicted",
                row.about,
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
    for quantity in found.system.quantities.values():
        value, unit = f"{quantity.value:,.6g}", quantity.unit
        source = quantity.source
        if quantity.grade:
            grade = f"{quantity.grade}: {GRADES[quantity.grade]}"
            facts.append([quantity.name, value, unit, grade, source])
            continue
        lines = [f"{change:+.1%}" for change in changes.get(quantity.name, ())] or ["", ""]
        assumed.append([quantity.name, value, unit, *lines, source])
    head = ["assumption", "value", "unit", "step if halved", "step if doubled", "why"]
    return (
        "<details open><summary>Assumptions on what is not published</summary>"
        f"{table(head, assumed, (0, 2, 5))}</details>"
        "<details><summary>Facts of the system, with their sources</summary>"
        f"{table(['fact', 'value', 'unit', 'grade', 'source'], facts, (0, 2, 3, 4))}</details>"
    )
