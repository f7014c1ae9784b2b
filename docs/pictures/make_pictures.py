"""Makes loss.svg, trace.svg, tensorboard.png and report.png, from runs of the quickstart.

    .venv/bin/python docs/pictures/make_pictures.py FOLDER

trains the quickstart's model on wafer and host and profiles it in FOLDER, where that is not done
yet. The screenshots need a program `chromium`; without it they are left as they are.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from make_plots import COLORS, GRID, text, write

PICTURES = Path(__file__).resolve().parent
PROGRAM = str(Path(sys.executable).parent / "cerebras-tf")
TRAIN = [PROGRAM, "train", "-p", "params_gpt3_tiny.yaml", "-o"]
EVALUATE = [PROGRAM, "eval_all", "-p", "params_gpt3_tiny.yaml", "-o"]
RUNS = {
    "wafer": [*TRAIN, "model_dir/gpt3_tiny"],
    "host": [*TRAIN, "model_dir/host", "--device", "/cpu:0"],
    "wafer_eval": [*EVALUATE, "model_dir/gpt3_tiny"],
    "host_eval": [*EVALUATE, "model_dir/host", "--device", "/cpu:0"],
    "profiled": [*TRAIN, "model_dir/profiled", "--max_steps", "20", "--profile", "5"],
    "report": [PROGRAM, "report", "-p", "params_gpt3_xl_pile.yaml", "--out", "xl.html"],
}


def train(folder: Path) -> None:
    """Makes the runs that are missing, and keeps what each prints in NAME.txt."""
    names = ["gpt3_tiny", "gpt3_xl_pile"]
    subprocess.run([PROGRAM, "configs", "copy", *names], cwd=folder, check=False)
    for name, command in RUNS.items():
        log = folder / f"{name}.txt"
        if not log.exists():
            with log.open("w") as output:
                subprocess.run(command, cwd=folder, check=True, stdout=output, stderr=output)


def losses(log: Path) -> list[tuple[int, float]]:
    """The (step, loss) pairs of a console's lines."""
    found = re.findall(r"global_step = (\d+), loss = ([\d.]+)", log.read_text(encoding="utf-8"))
    return [(int(step), float(loss)) for step, loss in found]


def draw_losses(folder: Path) -> None:
    """The loss curves of wafer and host."""
    left, bottom, wide, high, low, top = 50, 260, 560, 210, 2.0, 6.0

    def place(step, loss):
        return left + wide * step / 300, bottom - high * (loss - low) / (top - low)

    parts = [text(10, 22, "Loss of the tiny GPT on Shakespeare, nats per byte", size=14)]
    for value in range(2, 7):
        _, y = place(0, value)
        parts.append(f'<path d="M{left} {y}H{left + wide}" stroke="{GRID}"/>')
        parts.append(text(left - 8, y + 4, str(value), "end"))
    for step in range(0, 301, 50):
        parts.append(text(place(step, low)[0], bottom + 18, str(step), "middle"))
    for name, color, width in (("host", COLORS[2], 5), ("wafer", COLORS[0], 1.6)):
        places = itertools.starmap(place, losses(folder / f"{name}.txt"))
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}"/>'
        )
    parts.append(text(left + wide - 150, 60, "wide: host, TensorFlow"))
    parts.append(text(left + wide - 150, 78, "thin: wafer, this project"))
    parts.append(text(left + wide, bottom + 34, "step", "end"))
    write("loss.svg", left + wide + 20, bottom + 44, parts)


def draw_trace(folder: Path) -> None:
    """The tracks of one step of a trace, as Perfetto shows them."""
    trace = json.loads((folder / "model_dir/profiled/profile/trace.json").read_text())
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    names = {
        (each["pid"], each["tid"]): each["args"]["name"]
        for each in events
        if each.get("name") == "thread_name"
    }
    spans = [each for each in events if each.get("ph") == "X"]
    step = sorted((s for s in spans if re.fullmatch(r"step \d+", s["name"])), key=lambda s: s["ts"])
    begin, length = (step[1]["ts"], step[1]["dur"]) if len(step) > 1 else whole(spans)
    spans = [s for s in spans if begin <= s["ts"] < begin + length and s["dur"] > length / 1500]
    rows = nested(spans)
    left, wide, row = 190, 900, 30
    palette = ["#8fb4d9", "#f6c667", "#a8c99b", "#d9a3a3", "#c3b1dd", "#9ed0cf", "#e0b58a"]
    kinds: dict[str, str] = {}
    parts = [text(10, 20, f"one step of {length / 1000:.0f} ms", size=14)]
    for number, (track, depth) in enumerate(sorted(rows)):
        y = 34 + row * number
        if not depth:
            parts.append(text(left - 8, y + 17, names.get(track, str(track))[:28], "end"))
        for span in rows[track, depth]:
            color = kinds.setdefault(span["name"], palette[len(kinds) % len(palette)])
            x = left + wide * (span["ts"] - begin) / length
            width = max(0.6, min(wide * span["dur"] / length, left + wide - x))
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="24" fill="{color}" '
                f'stroke="#ffffff" stroke-width="0.4"/>'
            )
            if width > 6.5 * len(span["name"]):
                parts.append(text(round(x + 3, 1), y + 16, span["name"], size=11))
    write("trace.svg", left + wide + 15, 44 + row * len(rows), parts)


def nested(spans) -> dict:
    """Spans by (track, depth): how many spans of its track a span lies in."""
    found: dict = {}
    inside: dict = {}
    for span in sorted(spans, key=lambda s: (s["ts"], -s["dur"])):
        track = span["pid"], span["tid"]
        around = [end for end in inside.get(track, ()) if end > span["ts"]]
        found.setdefault((track, len(around)), []).append(span)
        inside[track] = [*around, span["ts"] + span["dur"]]
    return found


def whole(spans) -> tuple[float, float]:
    """The beginning and length of a fifth of all spans, which is one of five steps."""
    begin = min(s["ts"] for s in spans)
    return begin, (max(s["ts"] + s["dur"] for s in spans) - begin) / 5


def screenshot(name: str, url: str, size: str) -> None:
    """A picture of a page, made by chromium."""
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options = [f"--window-size={size}", "--virtual-time-budget=20000"]
    command = [*browser, *options, f"--screenshot={PICTURES / name}", url]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def show_tensorboard(folder: Path) -> None:
    """A picture of TensorBoard with both runs."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    runs = "wafer:model_dir/gpt3_tiny,host:model_dir/host"
    command = [sys.executable, "-m", "tensorboard.main", "--logdir_spec", runs, "--port", str(port)]
    command += ["--load_fast=false"]
    server = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    try:
        url = f"http://localhost:{port}/"
        for _ in range(60):
            time.sleep(2)
            try:
                answer = urllib.request.urlopen(f"{url}data/runs", timeout=10).read()
            except OSError:
                continue
            if len(json.loads(answer)) >= 2:
                break
        page = f"{url}?darkMode=false#scalars&tagFilter=%5E(loss%7Cperplexity)&_smoothingWeight=0"
        screenshot("tensorboard.png", page, "1280,640")
    finally:
        server.terminate()


def main(folder: Path) -> None:
    """Makes all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    train(folder)
    draw_losses(folder)
    draw_trace(folder)
    if shutil.which("chromium"):
        screenshot("report.png", f"file://{folder.resolve()}/xl.html", "1000,1000")
        show_tensorboard(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
