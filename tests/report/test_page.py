"""Reports are one file that needs nothing from elsewhere, and say what the prediction says."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from cerebras_tf.errors import ConfigError
from cerebras_tf.quantities import number, seconds
from cerebras_tf.report.compare import compare_page, compare_text
from cerebras_tf.report.page import report_page
from cerebras_tf.report.pictures import floorplan_pixels, memory_over_time
from cerebras_tf.report.record import read_record, record_of
from cerebras_tf.report.suggestions import sensitivity, suggestions
from cerebras_tf.wafer.pipelined import predict_pipelined
from cerebras_tf.wafer.streaming import predict_streaming
from cerebras_tf.wafer.system import load_system
from cerebras_tf.wafer.transformer import dense_network, transformer
from cerebras_tf.wafer.validation import measured_rows
from tests.messages import names

SYSTEM = load_system()
VOID = {"meta", "line", "rect", "polygon", "br"}


def streamed(batch=65, hidden=4096, layers=32):
    workload = transformer("model <b>", batch, hidden, layers, 32, 4 * hidden, 50257, 2048)
    return predict_streaming(workload, SYSTEM)


def pipelined(**given):
    workload = transformer("bert", 256, 768, 12, 12, 3072, 30522, 128, 20)
    return predict_pipelined(workload, SYSTEM, **given)


PREDICTIONS = {
    "spilling": streamed(),
    "fitting": streamed(8, 1024, 4),
    "pipelined": pipelined(),
    "copies": pipelined(multireplica=True),
    "micro-batches": replace(streamed(), micro_batches=4),
    "host": predict_pipelined(dense_network("fc", [784, 500, 10], 256), SYSTEM, "R1.8"),
}


class Balance(HTMLParser):
    """Checks that elements close in order; collects addresses and tags."""

    def __init__(self):
        super().__init__()
        self.open, self.addresses, self.tags = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [value for key, value in attrs if key in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)


@pytest.fixture(scope="module")
def rows():
    return measured_rows(SYSTEM)


@pytest.mark.parametrize("name", PREDICTIONS)
def test_a_page_is_well_formed_and_self_contained(name, rows):
    page = report_page(PREDICTIONS[name], ["one & two"], rows)
    parser = Balance()
    parser.feed(page)
    assert parser.open == [] and parser.addresses == []
    assert "nan" not in re.sub(r"<script.*?</script>", "", page) and "http" not in page
    assert "one &amp; two" in page and "<b>:" not in page
    for row in rows:
        assert f"{row.residual:+.1%}" in page


def test_a_page_says_what_is_predicted(rows):
    found = PREDICTIONS["spilling"]
    page = report_page(found, [], rows)
    assert f"{number(found.steps_per_s)} steps/s" in page
    assert f"{found.activations.spilled_bytes / 1e9:.1f} GB" in page
    assert "ffn_0 and 31 more" in page and "attention_0 and 31 more" in page
    for quantity in SYSTEM.quantities.values():
        assert f">{quantity.name}<" in page


@pytest.mark.parametrize("name, word", [("fitting", "fits"), ("spilling", "spills")])
def test_a_page_says_once_whether_the_model_fits(name, word, rows):
    page = report_page(PREDICTIONS[name], [], rows)
    assert re.findall(r"<b>(fits|spills|does not fit)</b>", page) == [word]


@pytest.mark.parametrize("name, is_small", [("spilling", False), ("fitting", True)])
def test_the_memory_of_small_models_has_its_own_scale(name, is_small):
    drawn = memory_over_time(PREDICTIONS[name])
    points = " ".join(re.findall('points="(.*?)"', drawn))
    heights = [float(y) for y in re.findall(r",(\S+)", points)]
    assert max(heights) - min(heights) > 120  # of 180
    assert ('class="limit"' in drawn) is not is_small
    assert bool(re.search(r"[\d.]+% of the wafer.*? 40 GB", drawn)) is is_small


def test_every_rectangle_of_the_floor_plan_is_drawn_in_the_colour_of_its_kind(rows):
    found = PREDICTIONS["copies"]
    page = report_page(found, [], rows)
    fills = re.findall(r'fill="(\S+)" class="place"><title>[^:]*, (\w+?)(?:_\d+)?:', page)
    assert len(fills) == len(found.floorplan) == 26 * found.replicas
    assert len(set(fills)) == len({kind for _, kind in fills}) == 4
    assert page.count('class="replica"') == found.replicas
    colours = {tuple(pixel) for pixel in floorplan_pixels(found).reshape(-1, 3)[::97]}
    assert {tuple(bytes.fromhex(fill[1:])) for fill, kind in fills if kind == "ffn"} <= colours


def test_the_image_of_the_floor_plan_has_names():
    found = PREDICTIONS["pipelined"]
    place = next(place for place in found.floorplan if place.name == "ffn_0")
    pixels = floorplan_pixels(found)[place.y : place.y + place.height]
    ink = (pixels[:, place.x : place.x + place.width] == 0).all(axis=2)
    columns = np.flatnonzero(ink.any(axis=0))
    letters = len("ffn_0") * 6  # columns of the font
    assert 0.5 * place.width < letters * round(np.ptp(columns) / letters) <= place.width
    assert abs(columns.mean() - place.width / 2) < 0.1 * place.width


def test_suggestions_are_predictions():
    (spill, *_, systems) = suggestions(PREDICTIONS["spilling"])
    (fits,) = re.findall(r"A batch of (\d+) per system fits", spill)
    assert not predict_streaming(
        PREDICTIONS["spilling"].workload.with_batch(int(fits)), SYSTEM
    ).activations.spilled_bytes
    assert systems.startswith("num_csx: 4")
    (copies,) = suggestions(PREDICTIONS["pipelined"])
    ratio = PREDICTIONS["copies"].samples_per_s / PREDICTIONS["pipelined"].samples_per_s
    assert f"{ratio:.2f} times" in copies
    assert "larger batch hardly takes longer" in suggestions(PREDICTIONS["host"])[0]


def test_assumptions_say_what_they_change():
    found = {name: changes for name, *changes in sensitivity(PREDICTIONS["spilling"])}
    assert found["start_cycles"][0] < 0 < found["start_cycles"][1]
    assert found["activation_bytes"][1] >= 0
    assert set(found) <= {q.name for q in SYSTEM.quantities.values() if not q.grade}


def test_reports_are_compared(tmp_path, rows):
    paths = []
    for name in ("fitting", "spilling"):
        folder = tmp_path / name / "compiled"
        folder.mkdir(parents=True)
        (folder / "report.html").write_text(report_page(PREDICTIONS[name], [], rows))
        paths.append(str(folder.parent))
    records = [read_record(path) for path in paths]
    assert records == [record_of(PREDICTIONS[name]) for name in ("fitting", "spilling")] or all(
        record["step_s"] == PREDICTIONS[name].step_s
        for record, name in zip(records, ("fitting", "spilling"))
    )
    told = compare_text(records)
    ratio = PREDICTIONS["spilling"].step_s / PREDICTIONS["fitting"].step_s
    assert re.search(r"^fits +yes +with spilling$", told, flags=re.MULTILINE)
    assert f"(x {ratio:.3g})" in told and "activations spilled, GB" in told
    parser = Balance()
    parser.feed(compare_page(records))
    assert parser.open == [] and "svg" in parser.tags


def test_a_comparison_shows_waiting_for_the_host():
    host = PREDICTIONS["host"]
    page = compare_page([record_of(host), record_of(PREDICTIONS["fitting"])])
    waiting = (host.step_s - host.wafer_s) / host.global_batch
    assert f"<title>host: {seconds(waiting)}</title>" in page


@pytest.mark.parametrize("content", [b"nothing", bytes(range(256))])
def test_a_file_that_is_no_report_is_refused(tmp_path, content):
    (tmp_path / "report.html").write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_record(str(tmp_path))
    assert names(error.value, "report.html", tmp_path, "--compile_only")


def test_assumptions_of_copies_change_a_step_of_as_many_copies():
    for _, half, twice in sensitivity(PREDICTIONS["copies"]):
        assert abs(half) < 0.5 and abs(twice) < 1.0
