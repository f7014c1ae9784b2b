"""A fitted law as a page with a picture: losses over compute, the law and its interval."""

import html
import math

import numpy as np

from cerebras_tf.api import page, pictures
from modelzoo.common.scaling.band import NO_BAND, interval

_LEFT, _TOP, _WIDTH, _HEIGHT = 80.0, 16.0, 840.0, 380.0


def law_page(runs, law, share):
    """The page."""
    flops, losses = [run.flops for run in runs], [run.loss for run in runs]
    at = np.geomspace(min(flops) / 2, max(flops) * 10, 40)
    found = interval(flops, losses, at, share)
    band = list(zip(*(found or (law.loss(at), law.loss(at)))))
    low = min(*losses, *(least for least, _ in band))
    high = max(*losses, *(most for _, most in band))

    def x(value):
        return _LEFT + _WIDTH * math.log(value / at[0]) / math.log(at[-1] / at[0])

    def y(value):
        return _TOP + _HEIGHT * (high - value) / (high - low)

    points = [f"{x(f):.1f},{y(most):.1f}" for f, (_, most) in zip(at, band)]
    points += [f"{x(f):.1f},{y(least):.1f}" for f, (least, _) in zip(at[::-1], band[::-1])]
    line = " ".join(f"{x(f):.1f},{y(law.loss(f)):.1f}" for f in at)
    parts = [
        f'<polygon points="{" ".join(points)}" fill="#cfe0f2"/>',
        f'<polyline points="{line}" fill="none" stroke="#0b5fa5" stroke-width="2"/>',
    ]
    for run in runs:
        title = f"<title>{html.escape(run.name)}: {run.loss:.4g}</title>"
        centre = f'cx="{x(run.flops):.1f}" cy="{y(run.loss):.1f}"'
        parts.append(f'<circle {centre} r="5" fill="#e07a1f">{title}</circle>')
    for power in range(math.ceil(math.log10(at[0])), math.floor(math.log10(at[-1])) + 1):
        parts.append(pictures.text(x(10.0**power), _TOP + _HEIGHT + 20, f"1e{power}", "middle"))
    for value in np.linspace(low, high, 5):
        parts.append(pictures.text(_LEFT - 8, y(value) + 4, f"{value:.3g}", "end"))
    parts.append(pictures.text(_LEFT + _WIDTH, _TOP + _HEIGHT + 38, "FLOP of training", "end"))
    picture = pictures.drawing(_TOP + _HEIGHT + 46, parts, "Loss over compute")
    rows = [
        [
            html.escape(run.name),
            f"{run.flops:.4g}",
            f"{run.loss:.4f}",
            f"{law.loss(run.flops):.4f}",
            f"{law.loss(run.flops) / run.loss - 1:+.2%}",
            run.kind,
        ]
        for run in runs
    ]
    band_note = (
        f"the band contains the true law with a confidence of {share:.0%}" if found else NO_BAND
    )
    note = f"Dots are runs; {band_note}."
    head = ["run", "FLOP", "loss", "of the law", "residual", ""]
    return page.document(
        "Scaling law",
        f"<h1>{html.escape(str(law))}</h1>"
        + page.section("Loss in nats per token, by compute", note, picture)
        + page.section("Runs", "", page.table(head, rows, (0, 5))),
    )
