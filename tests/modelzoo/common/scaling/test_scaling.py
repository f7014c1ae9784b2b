"""Fits find the law they were made from; plans keep to their budget."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.commands.main import main
from modelzoo.common.scaling.band import interval, student_quantile
from modelzoo.common.scaling.law import PUBLISHED, Law, fit_law
from modelzoo.common.scaling.picture import law_page
from modelzoo.common.scaling.plan import FAMILY, SEQUENCE, make_plan
from modelzoo.common.scaling.runs import Run

# arXiv 2304.03208: FLOPs and Pile test loss of the evaluated models.
PUBLISHED_FLOPS = (2.6e18, 1.3e19, 6.1e19, 2.8e20, 1.1e21, 6.3e21, 2.3e22)
LOSSES = (2.608, 2.349, 2.181, 1.997, 1.834, 1.704, 1.572)


def test_a_fit_to_the_published_rows_is_near_the_published_law():
    found = fit_law(PUBLISHED_FLOPS, LOSSES)
    for flops in (1e18, 1e20, 1e23):
        assert found.loss(flops) == pytest.approx(PUBLISHED.loss(flops), rel=0.015)


def test_a_fit_finds_the_law_that_made_the_losses():
    law = Law(3e15, 0.12, 0.8)
    flops = np.geomspace(1e11, 1e14, 6)
    found = fit_law(flops, law.loss(flops))
    assert found.b == pytest.approx(law.b, rel=1e-3) and found.c == pytest.approx(law.c, rel=1e-3)
    assert found.flops(found.loss(1e12)) == pytest.approx(1e12)


def test_the_interval_holds_the_truth_and_grows_with_noise():
    law, random = Law(3e15, 0.12, 0.8), np.random.default_rng(1)
    flops = np.geomspace(1e11, 1e14, 8)
    widths = []
    for noise in (0.001, 0.01):
        losses = law.loss(flops) * (1 + noise * random.standard_normal(8))
        least, most = interval(flops, losses, 1e15)
        assert least <= law.loss(1e15) <= most
        widths.append(most - least)
    assert widths[0] < widths[1]


@pytest.mark.parametrize(
    "freedom,quantile",
    [(1, 6.3138), (2, 2.9200), (3, 2.3534), (4, 2.1318), (5, 2.0150), (30, 1.6973)],
)
def test_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student_quantile(0.9, freedom) == pytest.approx(quantile, abs=5e-5)


@pytest.mark.parametrize("law", [Law(3e15, 0.12, 0.8), Law(1e12, 0.3, 1.5)], ids=str)
@pytest.mark.parametrize("runs", [4, 5, 7])
def test_nine_tenths_of_intervals_hold_the_truth(law, runs):
    """Of 200 sets of runs, whose share has a standard error of 0.021."""
    flops = np.geomspace(1e11, 3e13, runs)
    at = np.array([1e12, 3e13, 3e14])
    held = np.zeros(3)
    for seed in range(200):
        noise = np.random.default_rng(seed).standard_normal(runs)
        least, most = interval(flops, law.loss(flops) * np.exp(0.01 * noise), at)
        held += (least <= law.loss(at)) & (law.loss(at) <= most)
    assert (held / 200 >= 0.85).all()


def test_there_is_no_interval_of_three_computes_or_losses_that_do_not_fall(tmp_path):
    law, flops = Law(3e15, 0.12, 0.8), np.geomspace(1e11, 1e14, 4)
    losses = law.loss(flops) * np.array([1, 1.01, 0.99, 1])
    least, most = interval(flops, losses, 1e15)
    assert least < most
    assert interval(flops[:3], losses[:3], 1e15) is None
    assert interval([1e10, 1e11, 1e12, 1e12], [4.0, 3.0, 2.5, 2.4], 1e15) is None
    assert interval(flops, [2.0, 2.0, 2.0, 2.0], 1e15) is None
    runs = [Run(str(f), f, loss, True) for f, loss in zip(flops[:3], losses)]
    page = law_page(runs, fit_law(flops[:3], losses[:3]), 0.9)
    assert "no interval: it takes four runs or more" in page


def test_the_console_tells_of_what_losses_are(monkeypatch, capsys):
    law = Law(3e15, 0.12, 0.8)
    runs = {str(f): Run(f"{f:.0e}", f, law.loss(f), f != 1e12) for f in (1e11, 1e12, 1e13)}
    monkeypatch.setattr("modelzoo.common.scaling.runs.read_run", runs.__getitem__)
    monkeypatch.setattr("modelzoo.common.scaling.runs.require_run", runs.__getitem__)
    assert main(["scaling", "fit", *runs, "--at", "1e15"]) == 0
    out = capsys.readouterr().out
    assert "1e+11: 1e+11 FLOP, evaluation loss 4.2455, the law" in out
    assert "1e+12: 1e+12 FLOP, training loss" in out
    assert "losses of evaluations and of training differ" in out
    assert "at 1e+15 FLOP: 1.9409, no interval: it takes four runs or more" in out


def test_a_plan_takes_the_law_of_a_fit(capsys):
    plan = ["scaling", "plan", "--budget", "1e20"]
    assert main([*plan, "--law", "1.001e20", "0.05028", "0"]) == 0
    assert "nats a token, by the law given\n" in capsys.readouterr().out
    assert main([*plan, "--law", "0", "0.05028", "0"]) == 2
    assert "A and B must be above 0. Received: [0.0," in capsys.readouterr().err
    assert main(plan) == 0
    assert "nats a token of the Pile\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "given,told",
    [
        (["--budget", "1e308days"], "finite numbers. Received: 1e+308 days"),
        (["--budget", "1e300"], "finite numbers. Received: 1e+300 FLOP"),
        (["--budget", "1e20", "--law", "1e300", "300", "1"], "finite numbers"),
        (["--budget", "1daydays"], "or of days as in 10days. Received: '1daydays'"),
        (["--budget", "1e20", "--law", "1e20", "0.05", "-1"], "of at least 0. Received: '-1'"),
    ],
)
def test_budgets_and_laws_beyond_numbers_are_told(capsys, given, told):
    assert main(["scaling", "plan", *given]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_nothing_may_be_left_of_a_loss_in_any_spelling(capsys):
    plan = ["scaling", "plan", "--budget", "1day", "--law", "1e20", "0.05"]
    assert main([*plan, "0.0"]) == main([*plan, "0"]) == 0


def test_what_is_wrong_with_a_fit_is_told_before_tensorflow_is_loaded(tmp_path, capsys):
    (tmp_path / "file").write_text("text")
    code = (
        "import sys; from modelzoo.commands.main import main\n"
        "assert main(sys.argv[1:]) == 2 and 'tensorflow' not in sys.modules"
    )
    for runs, told in (
        (["nothing", "--out", "a.html"], "scaling fit: nothing: must be the model_dir of a run"),
        ([".", "--out", "file/a.html"], "--out file/a.html: must be a file that can be written"),
    ):
        command = [sys.executable, "-c", code, "scaling", "fit", *runs]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == 0 and told in " ".join(ended.stderr.split())


def test_what_cannot_be_fitted_is_told():
    with pytest.raises(DataError, match="must have been trained. Received: one of 0 FLOP"):
        fit_law([0.0, 1e10, 1e11], [4.0, 3.0, 2.0])
    with pytest.raises(DataError, match="three runs or more"):
        fit_law([1e10, 1e11], [3.0, 2.0])
    with pytest.raises(DataError, match="must fall with compute"):
        fit_law([1e10, 1e11, 1e12], [2.0, 2.5, 3.0])


@pytest.mark.parametrize("member", FAMILY, ids=lambda member: member.name)
def test_the_budget_of_a_published_run_gives_that_model(member):
    tokens = 20 * member.parameters
    found = make_plan(flops=member.flops(tokens), num_csx=16)
    assert found.member == member and found.tokens == pytest.approx(tokens)
    assert found.steps == round(tokens / (member.batch * SEQUENCE))


def test_members_have_the_parameters_of_their_names():
    for member in FAMILY:
        size = float(member.name[:-1]) * {"M": 1e6, "B": 1e9}[member.name[-1]]
        assert member.parameters == pytest.approx(size, rel=0.04)


def test_days_buy_as_much_as_they_are_worth():
    by_days = make_plan(days=10, num_csx=16)
    assert by_days.days == pytest.approx(10)
    again = make_plan(flops=by_days.flops, num_csx=16)
    assert again.member == by_days.member and again.days == pytest.approx(10)
    assert make_plan(days=10, num_csx=64).loss < by_days.loss
    assert "10 days on 16 CS-2, release R1.7.1" in str(by_days)


def test_a_budget_must_be_given_once():
    for given in ({}, {"flops": 1e20, "days": 1}, {"days": 0}):
        with pytest.raises(ConfigError, match="give FLOPs or days"):
            make_plan(**given)
