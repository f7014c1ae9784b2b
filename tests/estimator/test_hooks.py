"""Checks the guards of a training run: signals, NaN, and the performance summaries."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.collector import paused_collector
from cerebras_tf.console.graceful_stop import exit_code_of_signal
from cerebras_tf.console.shown_steps import ShownSteps
from cerebras_tf.errors import NumericsError
from cerebras_tf.estimator import hooks
from cerebras_tf.estimator.hooks import (
    FiniteStateListener,
    FreezeObjectsHook,
    GracefulStopHook,
    NanGuardHook,
    PerformanceSummaryHook,
    _earlier,
)
from tests.swarmx.ranks import join_job

pytestmark = pytest.mark.tf


class AtStep(tf.estimator.SessionRunHook):
    """Does something during the n-th step."""

    def __init__(self, step, action) -> None:
        self._left, self._action = step, action

    def before_run(self, run_context):
        self._left -= 1
        if self._left == 0:
            self._action()


def linear_model_fn(features, labels, mode, params):
    """One weight; the loss of step `nan_step` and later is `bad_loss`."""
    weight = tf.compat.v1.get_variable("weight", initializer=1.0)
    step = tf.compat.v1.train.get_or_create_global_step()
    loss = tf.reduce_mean(tf.square(features * weight))
    bad_loss = tf.constant(params.get("bad_loss", np.nan), tf.float32)
    loss = tf.where(step >= params.get("bad_step", 10**6) - 1, bad_loss, loss)
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(loss, step)
    chief_hooks = params["chief_hooks"](loss) if "chief_hooks" in params else None
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=train_op, training_chief_hooks=chief_hooks
    )


def input_fn():
    return tf.data.Dataset.from_tensors((tf.ones([4]), tf.zeros([4]))).repeat()


def build_estimator(model_dir, params=None, **config):
    config.setdefault("save_checkpoints_steps", 1000)
    return tf.estimator.Estimator(
        linear_model_fn,
        str(model_dir),
        tf.estimator.RunConfig(log_step_count_steps=None, **config),
        params or {},
    )


def last_checkpoint_step(model_dir):
    return int(tf.train.latest_checkpoint(str(model_dir)).rsplit("-", 1)[1])


def send(number):
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    "number,exception,code",
    [
        (signal.SIGINT, KeyboardInterrupt, None),
        (signal.SIGTERM, SystemExit, 143),
        (signal.SIGHUP, SystemExit, 129),
    ],
)
def test_a_signal_ends_the_step_writes_a_checkpoint_and_then_raises(
    tmp_path, capsys, number, exception, code
):
    received = threading.Event()
    hook = GracefulStopHook(model_dir=str(tmp_path))
    receive = hook._receive

    def receive_and_tell(signal_number):
        receive(signal_number)
        received.set()

    hook._receive = receive_and_tell

    def act():
        send(number)()
        assert received.wait(10)

    with pytest.raises(exception) as raised, hook as stop:
        build_estimator(tmp_path).train(input_fn, hooks=[AtStep(3, act), stop], max_steps=1000)
    assert last_checkpoint_step(tmp_path) == 3
    assert getattr(raised.value, "code", None) == code
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        f"{signal.Signals(number).name}: stopped at step 3; the same command resumes from "
        f"{tmp_path}/model.ckpt-3"
    )


def test_a_stop_before_the_first_checkpoint_says_so(tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt), GracefulStopHook(model_dir=str(tmp_path)) as stop:
        stop.signal_number = signal.SIGINT
    assert "SIGINT: stopped and no checkpoint was written" in capsys.readouterr().err


def test_a_hangup_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    hook = GracefulStopHook()
    try:
        hook.begin()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        hook.restore()
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_back_after_training_and_after_an_error(tmp_path):
    before = [signal.getsignal(number) for number in GracefulStopHook.SIGNALS]
    with GracefulStopHook() as stop:
        build_estimator(tmp_path).train(input_fn, hooks=[stop], max_steps=2)
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in GracefulStopHook.SIGNALS] == before

    def fail():
        raise ArithmeticError("broken")

    with pytest.raises(ArithmeticError), GracefulStopHook() as stop:
        build_estimator(tmp_path).train(input_fn, hooks=[stop, AtStep(1, fail)], max_steps=5)
    assert [signal.getsignal(number) for number in GracefulStopHook.SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.fixture
def frozen(monkeypatch):
    """How often objects are frozen. It replaces gc's counts: tests/conftest.py freezes millions."""
    counts = []
    fake = SimpleNamespace(
        callbacks=gc.callbacks,
        collect=gc.collect,
        freeze=lambda: counts.append(1),
        unfreeze=counts.clear,
        get_freeze_count=lambda: len(counts),
    )
    monkeypatch.setattr(hooks, "gc", fake)
    return counts


def test_what_a_full_collection_leaves_is_frozen_and_no_longer_than_training(tmp_path, frozen):
    counts, callbacks = [], list(gc.callbacks)

    def fail():
        raise ArithmeticError("broken")

    def collect():
        counts.append(len(frozen))
        gc.collect()
        counts.append(len(frozen))

    given = [AtStep(1, collect), AtStep(2, collect), AtStep(3, collect), AtStep(4, fail)]
    with pytest.raises(ArithmeticError), FreezeObjectsHook() as lasting:
        build_estimator(tmp_path).train(input_fn, hooks=[lasting, *given], max_steps=5)
    assert counts == [0, 0, 0, 1, 1, 1]
    assert not frozen
    assert gc.callbacks == callbacks


def test_what_a_program_froze_itself_stays_frozen(frozen):
    frozen.append(1)
    with FreezeObjectsHook() as lasting:
        lasting.after_run(None, None)
        gc.collect()
    assert frozen == [1]


def test_nothing_is_collected_before_the_first_step():
    with FreezeObjectsHook() as lasting:
        assert not gc.isenabled()
        lasting.after_run(None, None)
        assert gc.isenabled()
    with FreezeObjectsHook():
        pass
    assert gc.isenabled()


@pytest.mark.parametrize("frozen_before", [0, 1])
def test_lasting_objects_are_moved_to_the_oldest_generation(frozen_before, monkeypatch):
    calls = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen_before)
    for name in ("freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append((name, gc.isenabled())))
    with paused_collector(lasting=True):
        pass
    assert calls == ([] if frozen_before else [("freeze", False), ("unfreeze", False)])
    assert gc.isenabled()


def test_the_second_signal_aborts_at_once():
    aborted = threading.Event()
    codes = []

    def abort(code):
        codes.append(code)
        aborted.set()

    hook = GracefulStopHook(abort)
    hook.begin()
    try:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert aborted.wait(10)
    finally:
        hook.restore()
    assert codes == [130]


def test_in_a_job_signals_at_once_are_one_request(monkeypatch, tmp_path):
    join_job(monkeypatch, tmp_path, wafers=1)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    codes = []
    hook = GracefulStopHook(codes.append)
    hook._receive(signal.SIGTERM)
    now[0] += 0.3
    hook._receive(signal.SIGTERM)
    assert codes == []
    now[0] += 3.0
    hook._receive(signal.SIGTERM)
    assert codes == [143]


def test_nothing_is_installed_outside_the_main_thread():
    before = signal.getsignal(signal.SIGINT)
    hook = GracefulStopHook()
    thread = threading.Thread(target=hook.begin)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before
    hook.restore()
    hook.raise_if_signalled()


def test_exit_codes_of_signals_are_the_shells():
    assert exit_code_of_signal(signal.SIGINT) == 130
    assert exit_code_of_signal(signal.SIGTERM) == 143


def test_where_a_run_goes_on_follows_the_list_of_checkpoints(tmp_path, capfd):
    build_estimator(tmp_path, save_checkpoints_steps=1).train(input_fn, max_steps=3)
    names = [f"model.ckpt-{step}" for step in range(3)]
    tf.compat.v1.train.update_checkpoint_state(str(tmp_path), names[2], names)  # a rewind
    assert _earlier(str(tmp_path)).startswith(f"the run resumes from {tmp_path / names[2]},")
    assert _earlier(str(tmp_path)).endswith(f"from {tmp_path / names[1]}")
    with pytest.raises(SystemExit), GracefulStopHook(model_dir=str(tmp_path)) as stop:
        stop.signal_number = signal.SIGTERM
    assert (
        f"at step 2; the same command resumes from {tmp_path / names[2]}" in capfd.readouterr().err
    )
    (tmp_path / "checkpoint").unlink()
    assert "start from the beginning" in _earlier(str(tmp_path))


@pytest.mark.parametrize("bad_loss", [np.nan, np.inf, -np.inf])
def test_nan_guard_ends_training_before_the_damaged_state_is_saved(tmp_path, bad_loss):
    def chief_hooks(loss):
        return [
            NanGuardHook(loss, str(tmp_path)),
            tf.estimator.CheckpointSaverHook(str(tmp_path), save_steps=1),
        ]

    params = {"bad_step": 3, "bad_loss": bad_loss, "chief_hooks": chief_hooks}
    says = f"step 3: the loss must be finite.* resumes from {tmp_path}/model.ckpt-2.*ckpt-1"
    with pytest.raises(NumericsError, match=says):
        build_estimator(tmp_path, params).train(input_fn, max_steps=10)
    assert last_checkpoint_step(tmp_path) == 2


def test_nan_guard_keeps_the_final_checkpoint_from_being_written_wherever_it_stands(tmp_path):
    hooks = []

    def chief_hooks(loss):
        hooks.append(NanGuardHook(loss))
        return hooks

    params = {"bad_step": 3, "chief_hooks": chief_hooks}
    with pytest.raises(NumericsError):
        build_estimator(tmp_path, params).train(input_fn, max_steps=10)
    assert last_checkpoint_step(tmp_path) == 0


def test_finite_state_listener_refuses_damaged_weights_and_names_the_first(tmp_path):
    weights = {"step": np.array(3), "a": np.ones(3, np.float32), "b": np.array([1, np.nan])}
    listener = FiniteStateListener(
        lambda: [n for n, w in weights.items() if not np.isfinite(w).all()]
    )
    with pytest.raises(NumericsError, match="in 1 variables, the first 'b'"):
        listener.before_save(None, np.int64(7))
    weights["b"] = np.zeros(2)
    listener.before_save(None, np.int64(7))


def test_finite_state_listener_stops_the_save_it_listens_to(tmp_path):
    damaged = []

    def damage():
        damaged.append("weight")

    with pytest.raises(NumericsError, match="checkpoint of step 4"):
        build_estimator(tmp_path, save_checkpoints_steps=2).train(
            input_fn,
            hooks=[AtStep(3, damage)],
            max_steps=10,
            saving_listeners=[FiniteStateListener(lambda: damaged)],
        )
    assert last_checkpoint_step(tmp_path) == 2


def read_scalars(folder):
    """Returns tag -> {step: value} of every event file in a folder."""
    scalars = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    scalars.setdefault(value.tag, {})[event.step] = value.simple_value
    return scalars


def test_performance_summaries_hold_the_rates_and_the_memory_mark(tmp_path):
    class Clock:
        now_s = 0.0

        def __call__(self):
            return self.now_s

    clock = Clock()

    class Tick(tf.estimator.SessionRunHook):
        def before_run(self, run_context):
            clock.now_s += 0.5

    def chief_hooks(loss):
        tokens = tf.constant(4 * 128)
        return [
            PerformanceSummaryHook(str(tmp_path), ShownSteps(5), 4, tokens, lambda: 2.0**30, clock)
        ]

    build_estimator(tmp_path, {"chief_hooks": chief_hooks}).train(
        input_fn, hooks=[Tick()], max_steps=12
    )
    scalars = read_scalars(tmp_path)
    assert scalars["global_step/sec"] == {5: pytest.approx(2.0), 10: pytest.approx(2.0)}
    assert scalars["examples_per_sec"] == {5: pytest.approx(8.0), 10: pytest.approx(8.0)}
    assert scalars["tokens_per_sec"] == {5: pytest.approx(1024.0), 10: pytest.approx(1024.0)}
    assert scalars["wafer/memory_high_water_bytes"] == {5: 2.0**30, 10: 2.0**30}


def test_performance_summaries_leave_out_what_is_not_known(tmp_path):
    def chief_hooks(loss):
        return [PerformanceSummaryHook(str(tmp_path), ShownSteps(2))]

    build_estimator(tmp_path, {"chief_hooks": chief_hooks}).train(input_fn, max_steps=5)
    scalars = read_scalars(tmp_path)
    assert set(scalars["global_step/sec"]) == {2, 4}
    assert not {"examples_per_sec", "tokens_per_sec"} & set(scalars)
