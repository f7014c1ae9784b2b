"""Checks what the console shows: phases, step lines, and a bar on a terminal only."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.console import log, progress
from cerebras_tf.console.bar import progress_bar
from cerebras_tf.console.progress import PhaseReporter, StepWindow, TrainingClock, format_rate
from cerebras_tf.console.shown_steps import ShownSteps
from cerebras_tf.estimator.console_hooks import EvaluationBarHook, ProgressHook

pytestmark = pytest.mark.tf

LINE = re.compile(r"^global_step = (\d+), loss = (\S+), rate = (\S+) steps/sec(?:, \S+ left)?$")


class FakeClock:
    """A clock that moves only by `advance`."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class AdvanceHook(tf.estimator.SessionRunHook):
    """Lets each step take a number of seconds on a fake clock."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds

    def before_run(self, run_context):
        self._clock.advance(self._seconds)


@pytest.fixture
def messages(caplog):
    """Returns a function giving the INFO messages logged so far."""
    verbosity = tf.compat.v1.logging.get_verbosity()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    logger = logging.getLogger("tensorflow")
    logger.addHandler(caplog.handler)
    propagate, logger.propagate = logger.propagate, False
    yield lambda: [record.getMessage() for record in caplog.records]
    logger.propagate = propagate
    logger.removeHandler(caplog.handler)
    tf.compat.v1.logging.set_verbosity(verbosity)


def train(hooks, steps, loss=7.30078125):
    """Runs `steps` steps of a graph whose train op only counts them; hooks are made in it."""
    with tf.Graph().as_default():
        step = tf.compat.v1.train.get_or_create_global_step()
        loss_tensor = tf.constant(loss, tf.float32)
        train_op = tf.compat.v1.assign_add(step, 1)
        with tf.compat.v1.train.MonitoredSession(hooks=hooks(loss_tensor)) as session:
            for _ in range(steps):
                session.run([train_op, loss_tensor])


def step_lines(logged):
    return [match.groups() for match in map(LINE.match, logged) if match]


def test_phase_logs_its_seconds(messages):
    clock = FakeClock()
    reporter = PhaseReporter(clock)
    with reporter.phase("compiling 12 layers"):
        clock.advance(1.24)
    assert messages() == ["compiling 12 layers: 1.2 s"]
    assert reporter.seconds == {"compiling 12 layers": pytest.approx(1.24)}


def test_a_short_phase_is_not_logged(messages):
    clock = FakeClock()
    reporter = PhaseReporter(clock)
    for seconds in (0.9, 1.1):
        with reporter.phase("building the graph"):
            clock.advance(seconds)
    assert messages() == ["building the graph: 1.1 s"]


def test_phase_that_lasts_is_was_logged(messages, monkeypatch):
    was_logged = threading.Event()

    def show(*arguments):
        log.log_info(*arguments)
        was_logged.set()

    monkeypatch.setattr(progress, "log_info", show)
    with PhaseReporter(log_start_after_s=0.0).phase("capturing"):
        assert was_logged.wait(timeout=30)
    first, last = messages()
    assert first == "capturing ..."
    assert re.fullmatch(r"capturing: \d+\.\d s", last)


def test_phase_entered_twice_adds_up(messages):
    clock = FakeClock()
    reporter = PhaseReporter(clock)
    for seconds in (1.0, 2.0):
        with reporter.phase("capturing"):
            clock.advance(seconds)
    assert reporter.seconds == {"capturing": pytest.approx(3.0)}


def test_phase_that_raises_says_so_and_lets_the_error_through(messages):
    clock = FakeClock()
    with pytest.raises(KeyError), PhaseReporter(clock).phase("capturing"):
        clock.advance(3.0)
        raise KeyError("x")
    assert messages()[-1] == "capturing: failed after 3.0 s"


@pytest.mark.parametrize(
    "rate,text",
    [(0.49203, "0.492"), (12.0, "12.000"), (1523.1, "1523.100"), (0.000488, "0.000488")],
)
def test_rate_keeps_three_decimals_or_three_digits(rate, text):
    assert format_rate(rate) == text


def test_step_window_begins_when_opened_and_yields_nothing_without_steps():
    clock = FakeClock()
    window = StepWindow(clock)
    assert window.close(3) is None
    window.open(3)
    assert window.close(3) is None
    clock.advance(4.0)
    assert window.close(5) == (2, 4.0)
    clock.advance(1.0)
    assert window.close(6) == (1, 1.0)


def test_step_line_has_the_exact_form_at_the_steps_that_are_shown(messages):
    clock = FakeClock()
    train(
        lambda loss: [
            ProgressHook(loss, ShownSteps(50, last_step=101), 512, clock=TrainingClock(clock)),
            AdvanceHook(clock, 1 / 0.492),
        ],
        steps=101,
    )
    lines = [message for message in messages() if message.startswith("global_step")]
    assert lines == [
        "global_step = 1, loss = 7.30078125, rate = 0.492 steps/sec, 252 tokens/sec",
        "global_step = 50, loss = 7.30078125, rate = 0.492 steps/sec, 252 tokens/sec, 01:43 left",
        "global_step = 100, loss = 7.30078125, rate = 0.492 steps/sec, 252 tokens/sec, 00:02 left",
        "global_step = 101, loss = 7.30078125, rate = 0.492 steps/sec, 252 tokens/sec",
    ]


def test_rate_leaves_out_the_first_step(messages):
    clock = FakeClock()

    class SlowStart(AdvanceHook):
        def before_run(self, run_context):
            super().before_run(run_context)
            self._seconds = 0.5

    train(
        lambda loss: [
            ProgressHook(loss, ShownSteps(10), clock=TrainingClock(clock)),
            SlowStart(clock, 60.0),
        ],
        steps=10,
    )
    assert step_lines(messages())[1:] == [("10", "7.30078125", "2.000")]


def test_rates_leave_out_evaluations(messages, monkeypatch):
    clock, stream = FakeClock(), Terminal()
    training_clock = TrainingClock(clock)
    monkeypatch.setattr(sys, "stderr", stream)

    class Evaluation(AdvanceHook):
        def after_run(self, run_context, run_values):
            with training_clock.paused():
                clock.advance(60.0)

    train(
        lambda loss: [
            ProgressHook(loss, ShownSteps(2), clock=training_clock),
            Evaluation(clock, 2.0),
        ],
        steps=6,
    )
    assert {line[2] for line in step_lines(messages())} == {"0.500"}
    assert "training: 6 steps in 12.0 s" in messages()
    assert training_clock.paused_s == 360.0


def test_lines_at_every_step_repeat_no_step(messages):
    clock = FakeClock()
    train(
        lambda loss: [
            ProgressHook(loss, ShownSteps(1), clock=TrainingClock(clock)),
            AdvanceHook(clock, 2.0),
        ],
        steps=4,
    )
    assert [line[0] for line in step_lines(messages())] == ["1", "2", "3", "4"]
    assert {line[2] for line in step_lines(messages())} == {"0.500"}


def test_what_is_said_of_the_model_stands_before_training(messages):
    train(lambda loss: [ProgressHook(loss, ShownSteps(5), about=lambda: "12 parameters")], steps=1)
    logged = messages()
    assert logged[logged.index("12 parameters") + 1] == "training from step 0 ..."


def test_training_phase_is_was_logged_and_timed(messages):
    clock = FakeClock()
    train(
        lambda loss: [
            ProgressHook(loss, ShownSteps(100, last_step=7), clock=TrainingClock(clock)),
            AdvanceHook(clock, 2.0),
        ],
        steps=7,
    )
    logged = messages()
    assert "training from step 0 to 7 ..." in logged
    assert "training: 7 steps in 14.0 s" in logged


def test_no_bar_is_drawn_where_stderr_is_not_a_terminal(messages, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    train(lambda loss: [ProgressHook(loss, ShownSteps(2, last_step=6))], steps=6)
    assert stream.getvalue() == ""
    assert [line[0] for line in step_lines(messages())] == ["1", "2", "4", "6"]
    assert any(message.endswith(" left") for message in messages())


def test_a_bar_with_the_remaining_time_is_drawn_on_a_terminal(messages, monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    hooks = []

    def build(loss):
        hooks.append(ProgressHook(loss, ShownSteps(2, steps=6)))
        return hooks

    train(build, steps=6)
    assert "6/6 [" in stream.getvalue()
    assert "step/s" in stream.getvalue()
    assert [line[0] for line in step_lines(messages())] == ["1", "2", "4", "6"]
    assert not any(message.endswith(" left") for message in messages())


def test_close_after_a_failed_step_removes_the_bar_and_restores_the_log_handlers(
    messages, monkeypatch
):
    monkeypatch.setattr(sys, "stderr", Terminal())
    before = list(logging.getLogger("tensorflow").handlers)
    hooks = []

    class Fail(tf.estimator.SessionRunHook):
        def after_run(self, run_context, run_values):
            raise ArithmeticError("broken")

    def build(loss):
        hooks.append(ProgressHook(loss, ShownSteps(1, last_step=3)))
        return [*hooks, Fail()]

    with pytest.raises(ArithmeticError):
        train(build, steps=3)
    hooks[0].close()
    hooks[0].close()
    assert logging.getLogger("tensorflow").handlers == before


@pytest.mark.parametrize(("steps", "total"), [(2, 2), (9, 3), (None, 3)])
def test_the_bar_of_an_evaluation_hides_that_of_training(monkeypatch, steps, total):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with tf.Graph().as_default(), progress_bar(7, "step") as training:
        batches = tf.data.Dataset.range(3)
        hook = EvaluationBarHook(steps, lambda: batches)
        step = tf.compat.v1.train.get_or_create_global_step()
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            assert training.disable
            shown = sys.stderr.getvalue().rpartition("\r")[2]
            assert "evaluation" in shown and f"0/{total}" in shown
            session.run(step)
        assert not training.disable
        training.refresh()
        assert "0/7" in sys.stderr.getvalue().rpartition("\r")[2]


def test_nothing_is_drawn_in_a_pipe(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar(7, "step") as bar:
        bar.update(7)
    assert not sys.stderr.getvalue()
