"""CerebrasEstimator: tf.estimator.Estimator whose steps run on the emulated wafer.

tf.estimator's own loop runs unchanged: hooks, checkpoints, summaries and metrics are its own. This
file deliberately knows nothing of graphs; model_graph does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Callable, Optional

import tensorflow as tf

from cerebras_tf.capture.variables import resource_variables
from cerebras_tf.compiler.pipeline import Options
from cerebras_tf.errors import ConfigError
from cerebras_tf.estimator.capacity import check_memory
from cerebras_tf.estimator.hooks import (
    EvaluationStopHook,
    FiniteStateListener,
    GracefulStopHook,
    NanGuardHook,
    PerformanceSummaryHook,
)
from cerebras_tf.estimator.host_call import host_call_to_eval_metric_ops
from cerebras_tf.estimator.model_graph import ModelGraph, build
from cerebras_tf.estimator.progress import PhaseReporter, ProgressHook
from cerebras_tf.estimator.run_config import CSRunConfig, check_wafer_address, refuse_strategies
from cerebras_tf.ir import TensorType
from cerebras_tf.ir.program import Program
from cerebras_tf.ir.program_file import save_program

_TRAIN = tf.estimator.ModeKeys.TRAIN


class CerebrasEstimator(tf.estimator.Estimator):
    """Trains, evaluates and predicts on the wafer, or on the host with `use_cs=False`.

    Args:
        model_fn: as tf.estimator takes it; returns an EstimatorSpec or a CSEstimatorSpec.
        model_dir: folder of checkpoints and events.
        compile_dir: folder for compiled programs; `model_dir`/compiled where not given.
        config: a CSRunConfig or RunConfig.
        params: given to model_fn.
        warm_start_from: as tf.estimator takes it.
        use_cs: what methods do that are not told: True for the wafer, False for the host.

    Raises:
        ConfigError: an argument is of the wrong kind.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: Optional[str] = None,
        compile_dir: Optional[str] = None,
        config: Optional[tf.estimator.RunConfig] = None,
        params: Optional[dict[str, Any]] = None,
        warm_start_from: Any = None,
        use_cs: bool = True,
    ) -> None:
        config = CSRunConfig() if config is None else config
        super().__init__(model_fn, model_dir, config, params, warm_start_from)
        self.compile_dir = compile_dir or os.path.join(self.model_dir, "compiled")
        self.phases = PhaseReporter()
        self._use_cs = bool(use_cs)
        self._last_step: Optional[int] = None
        self._steps: Optional[int] = None
        self._given_hooks: list[Any] = []
        self._evaluation_hooks: list[Any] = []
        self._model: Optional[ModelGraph] = None
        # The console's lines are ProgressHook's; tf.estimator's own would double them.
        self._log_every = config.log_step_count_steps
        self._config: Any = self._config.replace(log_step_count_steps=None)

    def _assert_members_are_not_overridden(self) -> None:
        """tf.estimator forbids overriding; this class overrides on purpose."""

    @contextlib.contextmanager
    def _placed(self, use_cs: Optional[bool]) -> Iterator[None]:
        """Within: models go to the wafer, or to the host."""
        before, self._use_cs = self._use_cs, self._use_cs if use_cs is None else bool(use_cs)
        try:
            if self._use_cs:
                check_wafer_address(getattr(self._config, "cs_ip", None))
                refuse_strategies(self._config)
            yield
        finally:
            self._use_cs = before

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Any = None,
        steps: Optional[int] = None,
        max_steps: Optional[int] = None,
        saving_listeners: Any = None,
        use_cs: Optional[bool] = None,
        sparsifier: Any = None,
    ) -> CerebrasEstimator:
        """Trains; see tf.estimator.Estimator.train.

        Args:
            input_fn: as tf.estimator takes it.
            hooks: session run hooks; they may fetch any tensor of the model.
            steps: steps to make from here; not with max_steps.
            max_steps: global step at which to end.
            saving_listeners: told of checkpoints.
            use_cs: True for the wafer, False for the host, None for the constructor's choice.
            sparsifier: must be None; sparse training is not available.

        Returns:
            self.

        Raises:
            CerebrasError: what the wafer refuses, before the first step where possible.
        """
        if sparsifier is not None:
            raise ConfigError(
                "train: sparsifier must be None. Received: "
                f"{type(sparsifier).__name__}. Sparse training is not available; leave it out."
            )
        self._steps, self._last_step = steps, max_steps
        with self._placed(use_cs), GracefulStopHook() as stop:
            self._given_hooks = [*(hooks or []), stop]
            self._evaluation_hooks = [EvaluationStopHook(stop, self.model_dir)]
            try:
                super().train(input_fn, self._given_hooks, steps, max_steps, saving_listeners)
            finally:
                self._evaluation_hooks = []
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: Optional[int] = None,
        hooks: Any = None,
        checkpoint_path: Optional[str] = None,
        name: Optional[str] = None,
        use_cs: Optional[bool] = None,
    ) -> dict[str, Any]:
        """Evaluates; see tf.estimator.Estimator.evaluate. Returns metrics by name."""
        hooks = [*(hooks or []), *self._evaluation_hooks]
        with self._placed(use_cs):
            result: dict[str, Any] = super().evaluate(input_fn, steps, hooks, checkpoint_path, name)
            return result

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Any = None,
        hooks: Any = None,
        checkpoint_path: Optional[str] = None,
        yield_single_examples: bool = True,
        num_samples: Optional[int] = None,
        use_cs: Optional[bool] = None,
    ) -> Iterator[Any]:
        """Yields predictions; see tf.estimator.Estimator.predict.

        Args:
            input_fn: as tf.estimator takes it.
            predict_keys: which predictions to yield.
            hooks: session run hooks.
            checkpoint_path: checkpoint to use; the latest where not given.
            yield_single_examples: one example at a time instead of one batch.
            num_samples: number of items to yield; all where None.
            use_cs: True for the wafer, False for the host, None for the constructor's choice.
        """
        with self._placed(use_cs):
            items = super().predict(
                input_fn, predict_keys, hooks, checkpoint_path, yield_single_examples
            )
            for count, item in enumerate(items):
                if num_samples is not None and count >= num_samples:
                    items.close()
                    return
                yield item

    def train_and_evaluate(
        self, train_spec: Any, eval_spec: Any, use_cs: Optional[bool] = None
    ) -> Any:
        """tf.estimator.train_and_evaluate with this estimator."""
        with self._placed(use_cs):
            return tf.estimator.train_and_evaluate(self, train_spec, eval_spec)

    def compile(
        self,
        input_fn: Callable[..., Any],
        validate_only: bool = False,
        mode: str = _TRAIN,
        save: bool = True,
    ) -> Optional[Program]:
        """Compiles a model without running it.

        Args:
            input_fn: gives the features' shapes.
            validate_only: stop after the model is captured: every operation is supported then.
            mode: a tf.estimator.ModeKeys.
            save: write the program to compile_dir.

        Returns:
            The program; None with validate_only.

        Raises:
            UnsupportedOpError: the model needs operations without an IR form; all are listed.
            CapacityError: the model does not fit in this machine's memory.
        """
        with tf.Graph().as_default() as graph:
            tf.compat.v1.random.set_random_seed(self._config.tf_random_seed)
            self._create_and_assert_global_step(graph)
            features, labels, input_hooks = self._get_features_and_labels_from_input_fn(
                input_fn, mode
            )
            with self._placed(True):
                self._call_model_fn(features, labels, mode, self._config)
            model = self._model
            assert model is not None
            model.wiring.reroute()
            types = model.step.static_types()
            if types is None:
                types = self._types_of_first_batch(model, input_hooks)
            if validate_only:
                with self.phases.phase("capturing"):
                    model.step.captured(types)
                return None
            program = model.step.compiled(types)
            if save:
                self._write(program, str(model.step.graph))
            check_memory(program, model.store.bytes)
            return program

    def _write(self, program: Program, text: str) -> None:
        os.makedirs(self.compile_dir, exist_ok=True)
        path = os.path.join(self.compile_dir, "program.zip")
        save_program(program, path)
        with open(os.path.join(self.compile_dir, "program.txt"), "w", encoding="utf-8") as out:
            out.write(text + "\n")
        tf.compat.v1.logging.info(
            "compiled %d layers, %.1f MB of activations, %.3g FLOP a step; program in %s",
            len(program.layers),
            program.arena_bytes / 1e6,
            program.flops,
            path,
        )

    def _types_of_first_batch(self, model: ModelGraph, input_hooks: Any) -> list[TensorType]:
        nothing = tf.constant([], tf.string)
        scaffold = tf.compat.v1.train.Scaffold(
            init_op=tf.no_op(), ready_op=nothing, ready_for_local_init_op=nothing
        )
        with tf.compat.v1.train.SingularMonitoredSession(input_hooks, scaffold) as session:
            arrays = session.run(model.fed)
        return [TensorType(array.dtype.name, array.shape) for array in arrays]

    def _create_global_step(self, graph: tf.Graph) -> Any:
        """A resource variable also where resource variables are switched off."""
        scope = tf.compat.v1.get_variable_scope()
        with tf.compat.v1.variable_scope(scope, use_resource=True):
            return super()._create_global_step(graph)

    def _call_model_fn(self, features: Any, labels: Any, mode: str, config: Any) -> Any:
        """tf.estimator's call of model_fn, with the model put on the wafer where it is wanted."""

        def call() -> Any:
            # On host and wafer alike: seeds, which count operations, come out equal.
            with resource_variables():
                spec = super(CerebrasEstimator, self)._call_model_fn(features, labels, mode, config)
            return _with_host_call(spec, mode)

        if not self._use_cs:
            spec = call()
        else:
            options = Options(streaming=_streaming(config))
            keep = config.keep_checkpoint_max
            self._model = build(call, mode, options, self.phases.phase, keep)
            spec = self._model.spec
        if mode == _TRAIN:
            chief = self._guarded_saver(spec)
            spec = spec._replace(
                training_hooks=[*self._own_hooks(spec, features), *spec.training_hooks],
                training_chief_hooks=[*chief, *spec.training_chief_hooks],
            )
        return spec

    def _guarded_saver(self, spec: Any) -> list[Any]:
        """The guard against NaN, then the saver: tf.estimator's own would save the damage first."""
        guard = NanGuardHook(spec.loss)
        config, saver_type = self._config, tf.compat.v1.train.CheckpointSaverHook
        given = [*self._given_hooks, *spec.training_hooks, *spec.training_chief_hooks]
        wanted = config.save_checkpoints_secs or config.save_checkpoints_steps
        if not wanted or any(isinstance(hook, saver_type) for hook in given):
            return [guard]
        saver = saver_type(
            self.model_dir,
            save_secs=config.save_checkpoints_secs,
            save_steps=config.save_checkpoints_steps,
            scaffold=spec.scaffold,
            listeners=[FiniteStateListener(self._trainable_weights)],
            save_graph_def=config.checkpoint_save_graph_def,
        )
        return [guard, saver]

    def _trainable_weights(self) -> Iterator[tuple[str, Any]]:
        """Weights on the wafer; none where the model is on the host."""
        if self._use_cs and self._model is not None:
            store = self._model.store
            yield from ((name, store.get(name)) for name, s in store.specs.items() if s.trainable)

    def _own_hooks(self, spec: Any, features: Any) -> list[Any]:
        """Console lines and rates."""
        hooks: list[Any] = []
        if self._log_every:
            hooks.append(ProgressHook(spec.loss, self._log_every, self._last_step, self._steps))
        if self._config.save_summary_steps:
            examples, tokens = _sizes(features)
            hooks.append(
                PerformanceSummaryHook(
                    self.model_dir,
                    self._config.save_summary_steps,
                    examples,
                    tokens,
                    self._memory_high_water if self._use_cs else None,
                )
            )
        return hooks

    def _memory_high_water(self) -> float:
        model = self._model
        program = model.step.program if model is not None else None
        if model is None or program is None:
            return 0.0
        return float(program.arena_bytes + max(layer.weight_bytes for layer in program.layers))

    def _add_meta_graph_for_mode(self, *args: Any, **kwargs: Any) -> Any:
        """A SavedModel holds TensorFlow's own graph: it must run without this package."""
        with self._placed(False):
            return super()._add_meta_graph_for_mode(*args, **kwargs)


def _with_host_call(spec: Any, mode: str) -> Any:
    host_call = getattr(spec, "host_call", None)
    if host_call is None or mode != tf.estimator.ModeKeys.EVAL:
        return spec
    return spec._replace(host_call=None, eval_metric_ops=host_call_to_eval_metric_ops(host_call))


def _streaming(config: Any) -> bool:
    return getattr(config, "execution_mode", "weight_streaming") == "weight_streaming"


def _sizes(features: Any) -> tuple[Optional[int], Optional[int]]:
    """(examples, tokens) of a batch, where shapes say so; tokens are those of `input_ids`."""
    tensors = [t for t in tf.nest.flatten(features) if isinstance(t, tf.Tensor)]
    shapes = [t.shape.as_list() for t in tensors if t.shape.rank]
    examples = shapes[0][0] if shapes else None
    ids = features.get("input_ids") if isinstance(features, dict) else None
    tokens = ids.shape.num_elements() if isinstance(ids, tf.Tensor) else None
    return examples, tokens
