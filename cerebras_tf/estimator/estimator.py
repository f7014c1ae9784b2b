"""CerebrasEstimator: tf.estimator.Estimator whose steps run on the emulated wafer.

tf.estimator's own loop runs unchanged, with its hooks, checkpoints, summaries and metrics. Methods
with a leading underscore that the class overrides or calls are private API of tf.estimator:
they build the graph and run the loop, and no public method does.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import itertools
import numbers
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, Optional, Union

import tensorflow as tf

from cerebras_tf.bundle.paths import check_checkpoint_path
from cerebras_tf.capture.replacement import without_deprecation_warnings
from cerebras_tf.capture.variables import resource_variables
from cerebras_tf.checkpoints.folder_lock import locked
from cerebras_tf.checkpoints.reader import CheckpointReader, latest_listed, warn_of_cut_files
from cerebras_tf.checkpoints.saver import HostSaver
from cerebras_tf.collector import paused_collector
from cerebras_tf.console.log import is_silent, log_info
from cerebras_tf.console.loggers import WANDB, require_wandb
from cerebras_tf.console.progress import PhaseReporter
from cerebras_tf.environment import EXECUTION_MODE
from cerebras_tf.errors import ConfigError, SystemUnreachableError
from cerebras_tf.estimator.call import (
    CallContext,
    enclosing_training,
    enclosing_training_hooks,
    pause_training,
    training,
)
from cerebras_tf.estimator.console_hooks import EvaluationBarHook, logging_scalars
from cerebras_tf.estimator.hooks import EvaluationStopHook, FreezeObjectsHook, GracefulStopHook
from cerebras_tf.estimator.model_graph import build
from cerebras_tf.estimator.options import compiler_options, warn_of_ignored_options
from cerebras_tf.estimator.prediction import name_of_mode, predict_program, write_report
from cerebras_tf.estimator.run_config import (
    CSRunConfig,
    as_cs_run_config,
    check_wafer_address,
    refuse_strategies,
)
from cerebras_tf.estimator.sparse_training import check_sparsifier
from cerebras_tf.estimator.spec import HOST_CALL_LOSS, LOSS, with_host_call
from cerebras_tf.estimator.training import (
    add_guards,
    add_progress_lines,
    add_reports,
    sizes,
    trained_parameters,
)
from cerebras_tf.frontend.description import describe_program, effort
from cerebras_tf.frontend.program_cache import ProgramCache
from cerebras_tf.ir.program import Program
from cerebras_tf.memoryx.disk_speed import require_free
from cerebras_tf.memoryx.process_folder import remove_stores
from cerebras_tf.runtime.capacity import trim_heap, use_one_heap
from cerebras_tf.step import cluster
from cerebras_tf.step.accumulation import Accumulation, accumulating
from cerebras_tf.step.split_batch import SplitBatch, batches_for, batches_of_step, split_batch
from cerebras_tf.swarmx import job
from cerebras_tf.tf_session import synchronous_batches
from cerebras_tf.tf_session.lean_session import lean_sessions, make_lean, with_pruned_graphs
from cerebras_tf.wafer.prediction import Prediction, one_line

_GRAPH_FILES = 8  # size of the files of a graph, as text and in events, in its protobufs
_TRAIN = tf.estimator.ModeKeys.TRAIN
# Private API: the module of tf.estimator's class, even if a test replaces that class by this one.
_theirs: Any = inspect.getmodule(tf.estimator.Estimator)


class CerebrasEstimator(tf.estimator.Estimator):
    """Trains, evaluates and predicts on the wafer, or on the host with `use_cs=False`.

    Args:
        model_fn: as tf.estimator takes it; returns an EstimatorSpec or a CSEstimatorSpec.
        model_dir: folder of checkpoints and events.
        compile_dir: folder for compiled programs; by default `model_dir`/compiled. If a RunConfig
            is given in this position, tf.estimator's order applies: config, params,
            warm_start_from.
        config: a CSRunConfig or RunConfig. A CSRunConfig replaces tf.estimator's console lines by
            those of ProgressHook and PerformanceSummaryHook.
        params: passed to model_fn.
        warm_start_from: as tf.estimator takes it.
        use_cs: the default of the methods' use_cs: True for the wafer, False for the host.
        batches_per_step: number of batches per training step, over all wafers. The step applies the
            mean of their gradients. On the wafer in one process, the estimator accumulates them;
            else model_fn must, see `cerebras_tf.api.accumulates_batches`. At least num_csx of
            config.
        accumulate_in_model_fn: whether model_fn always accumulates them.

    Raises:
        ConfigError: an argument is of the wrong kind, or model_dir has `[` or a backslash.
    """

    _session_config: Any  # tf.estimator's, of the sessions that a call makes

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: Optional[str] = None,
        compile_dir: Union[str, tf.estimator.RunConfig, None] = None,
        config: Optional[tf.estimator.RunConfig] = None,
        params: Optional[dict[str, Any]] = None,
        warm_start_from: Any = None,
        use_cs: bool = True,
        *,
        batches_per_step: int = 1,
        accumulate_in_model_fn: bool = False,
    ) -> None:
        if isinstance(compile_dir, tf.estimator.RunConfig):
            if config is not None:
                params, warm_start_from = config, params
            compile_dir, config = None, compile_dir
        with without_deprecation_warnings():
            super().__init__(model_fn, model_dir, config, params, warm_start_from)
        check_checkpoint_path(self.model_dir, "model_dir")
        self.compile_dir = compile_dir or os.path.join(self.model_dir, "compiled")
        self.phases = PhaseReporter()
        self._call = CallContext(bool(use_cs))
        self._users_config = self._config
        self._config: Any = as_cs_run_config(self._config)
        if self._config.memoryx_dir is not None:  # also where nothing is left to train
            remove_stores(Path(self._config.memoryx_dir))
        self._systems = self._config.num_csx
        self._batches_per_step = max(_checked(batches_per_step), self._systems)
        if self._config.micro_batches > 1 and self._batches_per_step > job.wafers():
            raise ConfigError(
                "micro_batches: cannot be combined with several batches per step (num_csx, "
                f"batches_per_step). Received: {self._config.micro_batches} and "
                f"{self._batches_per_step}. Use smaller batches, and more of them."
            )
        self._accumulate_in_model_fn = accumulate_in_model_fn
        self._given_config = self._config
        # tf.estimator's own lines, rates and summaries would double ours. In a cluster its hooks
        # decide which task reports.
        self._reports = isinstance(config, CSRunConfig) and not config.cluster_spec
        if self._reports:
            self._config = self._config.replace(log_step_count_steps=None, save_summary_steps=0)

    def _assert_members_are_not_overridden(self) -> None:
        """Allows overriding tf.estimator's methods here, and none of these in subclasses."""
        # Private API of TensorFlow: the check that every estimator makes of its subclasses.
        _theirs._assert_members_are_not_overridden(CerebrasEstimator, self)

    @property
    def config(self) -> Any:
        """A copy of the run configuration as it was given, with defaults filled in."""
        return copy.deepcopy(self._users_config)

    @property
    def model_fn(self) -> Any:
        """The model_fn with this estimator's parameters, on the host or the wafer, see use_cs."""
        return super(CerebrasEstimator, self._in_call(None)).model_fn

    def _in_call(self, use_cs: Optional[bool], **fields: Any) -> CerebrasEstimator:
        """A copy of this estimator with a new context, for one call."""
        on_wafer = self._call.use_cs if use_cs is None else bool(use_cs)
        if fields.get("sparsifier") is not None:
            check_sparsifier(fields["sparsifier"], on_wafer)
        if on_wafer:
            check_wafer_address(self._config.cs_ip, self._config.credentials_path)
            refuse_strategies(self._config)
        else:
            warn_of_ignored_options(self._config)
        if self._config.memoryx_dir is not None:
            gc.collect()  # graphs and sessions of earlier calls, which have reference cycles
            trim_heap()
            use_one_heap()
        bound = copy.copy(self)
        systems, batches = self._systems, self._batches_per_step
        bound._call = CallContext(
            on_wafer, True, systems=systems, micro_batches=batches // systems, **fields
        )
        if self._accumulates(on_wafer):
            bound._call.accumulated = batches
        if on_wafer and not self._config.cluster_spec:
            bound._session_config = with_pruned_graphs(self._session_config)
        return bound

    def _accumulates(self, on_wafer: bool) -> bool:
        """Whether the batches of a training step are its micro-batches."""
        return (
            on_wafer
            and job.wafers() == 1
            and EXECUTION_MODE.get() == "weight_streaming"
            and not self._config.cluster_spec
            and not self._accumulate_in_model_fn
        )

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
            steps: number of steps to train; not with max_steps.
            max_steps: global step at which training ends.
            saving_listeners: listeners of the checkpoint saver.
            use_cs: True for the wafer, False for the host, None for the constructor's choice.
            sparsifier: has the methods of BaseSparsifier (cerebras.tf.ws.ws_sparsify). The weights
                that it prunes when training starts stay exactly zero, and the optimizer's state
                with them; checkpoints hold the zeros.

        Returns:
            self.

        Raises:
            ConfigError: another process trains in model_dir; the sparsifier prunes nothing, or the
                host is to train with it.
            CheckpointError: model_dir lists damaged checkpoints; warm_start_from is no checkpoint.
            CerebrasError: the wafer refuses the model, before the first step if possible.
        """
        found = latest_listed(self.model_dir, "training starts from the beginning")
        if self._warm_start_settings and not found:
            CheckpointReader(self._warm_start_settings.ckpt_to_initialize_from)
            warn_of_cut_files(self._warm_start_settings.ckpt_to_initialize_from)
        if sparsifier is None:
            sparsifier = self._call.sparsifier  # of a training with evaluations
        bound = self._in_call(use_cs, steps=steps, last_step=max_steps, sparsifier=sparsifier)
        cluster.refuse_host(bound._call.use_cs)
        # Of a cluster's tasks, which share the folder, one writes.
        writes = self._config.is_chief and job.is_first()
        alone = locked(self.model_dir) if writes else contextlib.nullcontext()
        stopping = GracefulStopHook(model_dir=self.model_dir)
        with (
            _process_state(),
            cluster.fail_together(),
            self._naming_last_checkpoint(bound._call),
            alone,
            stopping as stop,
            FreezeObjectsHook() as lasting,
            self._logged("train"),
            training(bound._call),
            closing(bound._call),
        ):
            bound._call.stop = EvaluationStopHook(stop, self.model_dir)
            every = [*(hooks or []), stop, lasting]
            train = super(CerebrasEstimator, bound).train
            train(input_fn, every, steps, max_steps, saving_listeners)
        return self

    @contextlib.contextmanager
    def _naming_last_checkpoint(self, call: CallContext) -> Iterator[None]:
        """Within: the error of a training whose wafer is lost names the last checkpoint."""
        try:
            yield
        except SystemUnreachableError as error:
            if call.model is None:  # no step was made
                raise
            last = tf.train.latest_checkpoint(self.model_dir) or "none"
            raise SystemUnreachableError(f"{error} The last is {last}.") from None

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: Optional[int] = None,
        hooks: Any = None,
        checkpoint_path: Optional[str] = None,
        name: Optional[str] = None,
        use_cs: Optional[bool] = None,
    ) -> dict[str, Any]:
        """Evaluates; see tf.estimator.Estimator.evaluate. Returns metrics by name.

        Raises:
            CheckpointError: the list of checkpoints in model_dir, or the checkpoint, is damaged.
        """
        self._check_checkpoint(checkpoint_path)
        hooks = [*(hooks or []), *enclosing_training_hooks()]
        bound = self._in_call(use_cs)
        bar = EvaluationBarHook(steps, lambda: bound._call.inputs)
        if self._given_config.log_step_count_steps and job.is_first():
            hooks.append(bar)
        if job.wafers() > 1:  # each wafer evaluates its shard of the batches
            bound._call.steps, steps = steps, None
            hooks.append(cluster.SumOfMetricsHook())
        logged = self._logged("eval", name)
        with pause_training(), _process_state(), closing(bound._call), closing(bar), logged:
            result: dict[str, Any] = super(CerebrasEstimator, bound).evaluate(
                input_fn, steps, hooks, checkpoint_path, name
            )
        if enclosing_training() is not None:
            # Python's collector would wait for the graphs, which refer to themselves, of many
            # evaluations. Most other objects are frozen.
            del bound, bar, hooks
            gc.collect()
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
            checkpoint_path: checkpoint to use; None for the latest.
            yield_single_examples: one example at a time instead of one batch.
            num_samples: number of items to yield; None for all.
            use_cs: True for the wafer, False for the host, None for the constructor's choice.

        Raises:
            CheckpointError: the list of checkpoints in model_dir, or the checkpoint, is damaged.
        """
        self._check_checkpoint(checkpoint_path)
        bound = self._in_call(use_cs)
        items = super(CerebrasEstimator, bound).predict(
            input_fn, predict_keys, hooks, checkpoint_path, yield_single_examples
        )
        with _process_state(), closing(bound._call), closing(items):
            yield from itertools.islice(items, num_samples)

    def _check_loggers(self) -> None:
        """Raises ConfigError if a logger is not installed; prediction logs nothing."""
        if WANDB in self._config.loggers:
            require_wandb()

    def _logged(self, mode: str, name: Optional[str] = None) -> AbstractContextManager[None]:
        """Within: the loggers receive the scalars of training, or of an evaluation of a name."""
        self._check_loggers()
        if not job.is_first():
            return contextlib.nullcontext()
        folder = self.model_dir if mode == "train" else self.eval_dir(name)
        return logging_scalars(self._config.loggers, self.model_dir, folder, mode, self.params)

    def _check_checkpoint(self, checkpoint_path: Optional[str]) -> None:
        """Logs which parts of a checkpoint are missing; refuses a damaged list of checkpoints."""
        if path := checkpoint_path or latest_listed(self.model_dir, "weights are initialized"):
            warn_of_cut_files(path)

    def train_and_evaluate(
        self, train_spec: Any, eval_spec: Any, use_cs: Optional[bool] = None, sparsifier: Any = None
    ) -> Any:
        """tf.estimator.train_and_evaluate with this estimator; `sparsifier` as `train` takes it."""
        bound = self._in_call(use_cs, sparsifier=sparsifier)
        with _process_state():
            return tf.estimator.train_and_evaluate(bound, train_spec, eval_spec)

    @paused_collector()
    def compile(
        self,
        input_fn: Callable[..., Any],
        validate_only: bool = False,
        mode: str = _TRAIN,
        save: bool = True,
        sparsifier: Any = None,
    ) -> Optional[Program]:
        """Compiles a model without running it.

        Args:
            input_fn: gives the features' shapes.
            validate_only: only check that the model compiles: nothing is written.
            mode: a tf.estimator.ModeKeys.
            save: write the program to compile_dir, where `train`, `evaluate` and `predict` of the
                same model and settings load it. If it does not fit in this computer's
                memory, a line on the console and in the report reports that.
            sparsifier: what `train` will be given; predictions count the weights that it leaves.

        Returns:
            The program; None with validate_only.

        Raises:
            UnsupportedOpError: the model needs operations without an IR form; all are listed.
            CapacityError: the model does not fit in this machine's memory, and is not saved.
        """
        if mode != tf.estimator.ModeKeys.PREDICT:
            self._check_loggers()
        bound = self._in_call(True, runs=False, sparsifier=sparsifier)
        call = bound._call
        with _process_state(), self._new_graph(), closing(call):
            features, labels, input_hooks = bound._get_features_and_labels_from_input_fn(
                input_fn, mode
            )
            program = bound._compiled(features, labels, mode, input_hooks)
            bound._report(program, mode, save and not validate_only, save or validate_only)
            return None if validate_only else program

    @contextlib.contextmanager
    def _new_graph(self) -> Iterator[None]:
        """A graph with a global step, as tf.estimator begins one."""
        with tf.Graph().as_default() as graph:
            tf.compat.v1.random.set_random_seed(self._config.tf_random_seed)
            self._create_and_assert_global_step(graph)
            yield

    def _compiled(self, features: Any, labels: Any, mode: str, input_hooks: Any = ()) -> Program:
        """The program of the model that this call makes in the default graph."""
        self._call_model_fn(features, labels, mode, self.config)
        assert self._call.model is not None
        return self._call.model.compiled(input_hooks, updates=mode == _TRAIN)

    def _report(self, program: Program, mode: str, save: bool, passes: bool) -> None:
        """Logs what a program needs, writes it and its report; raises a fault unless `passes`."""
        call = self._call
        model = call.model
        assert model is not None and model.step.source.unfitted is not None
        is_split = model.step.micro_batches is not None
        precision = self._config.precision
        described = describe_program(
            program, model.store, trained_parameters(), precision, is_split, mode == _TRAIN
        )
        here = described.splitlines()
        predicted = self._predicted(model.step.source.unfitted, call)
        fault = model.step.session.capacity_error(program)
        faults = []
        if fault is not None and passes:
            fault = model.step.source.with_advice(fault, program)
            faults = [f"it does not fit on this computer: {fault}"]
        for line in (*here, one_line(predicted), *faults):
            log_info("%s", line)
        if fault is not None and not passes:
            raise fault
        if mode == _TRAIN and not (save or passes):
            self._require_disk(model.store)
        if save and job.is_first():
            path = model.step.source.save(self._compiled_programs(mode))
            here += [*faults, effort(program, call.batches_here if mode == _TRAIN else 1)]
            log_info("%s; program in %s", here[-1], path)
            log_info("report in %s", write_report(predicted, here, self.compile_dir, mode))

    def _require_disk(self, store: Any) -> None:
        """Checks that the first checkpoint and its graph fit on the disk."""
        state = sum(spec.type.max_bytes for spec in store.specs.values())
        graph = _GRAPH_FILES * tf.compat.v1.get_default_graph().as_graph_def().ByteSize()
        require_free(self.model_dir, state + graph, "the first checkpoint", "model_dir")

    def _predicted(self, program: Program, call: CallContext) -> Prediction:
        """Predicts a real system for a program that was not fitted into memory."""
        return predict_program(program, call, self._config)

    def _compiled_programs(self, mode: str) -> ProgramCache:
        """The programs of a mode in compile_dir."""
        return ProgramCache(self.compile_dir, name_of_mode(mode), tf.compat.v1.logging.warning)

    def _create_global_step(self, graph: tf.Graph) -> Any:
        """Makes a resource variable even if resource variables are disabled."""
        scope = tf.compat.v1.get_variable_scope()
        with tf.compat.v1.variable_scope(scope, use_resource=True):
            return super()._create_global_step(graph)

    def eval_dir(self, name: Optional[str] = None) -> str:
        """Folder of an evaluation's events; a temporary one if another process writes them."""
        return super().eval_dir(name) if job.is_first() else cluster.scratch_folder()

    def _call_input_fn(self, input_fn: Any, mode: str, input_context: Any = None) -> Any:
        """tf.estimator's call; the batches are sharded over several wafers."""
        if job.wafers() == 1 or mode == tf.estimator.ModeKeys.PREDICT:
            result = super()._call_input_fn(input_fn, mode, input_context)
            self._call.inputs = result
            config = synchronous_batches.without_pool(self._session_config)
            on_host = not self._call.use_cs or self._config.cluster_spec
            is_synchronous = not on_host and config and synchronous_batches.has_threads(result)
            if is_synchronous:
                self._session_config = config
            if mode == _TRAIN and self._call.accumulated > 1:
                self._call.batches = batches_for(result, self._call.accumulated, is_synchronous)
                return self._call.batches
            return synchronous_batches.SynchronousBatches(result) if is_synchronous else result
        with cluster.same_shuffle_order():
            context = cluster.input_context(input_fn)
            result = super()._call_input_fn(input_fn, mode, context)
            is_sharded = context is not None and context.is_used
            return cluster.shard_batches(result, mode, self._call.steps, is_sharded)

    def _check_accumulation(self, accumulation: Accumulation) -> None:
        """Checks that model_fn accumulates the batches of a step where the estimator does not."""
        count = self._batches_per_step // job.wafers()
        if count <= 1 or accumulation.has_asked:
            return
        if self._batches_per_step > self._systems:
            raise ConfigError(
                "batches_per_step: on the host, in pipelined mode and with several processes, "
                f"model_fn must accumulate gradients. Received: {count} batches per step, and a "
                "model_fn that does not call cerebras_tf.api.accumulates_batches. Train on the "
                "wafer in one process, or set batches_per_step=1."
            )
        tf.compat.v1.logging.warning(
            "num_csx %d: each step trains on one batch, because model_fn does not accumulate "
            "gradients; on the wafer in one process the estimator accumulates them",
            self._systems,
        )

    def _validate_features_in_predict_input(self, result: Any) -> None:
        if not synchronous_batches.are_synchronous(result):
            super()._validate_features_in_predict_input(result)

    def _call_model_fn(self, features: Any, labels: Any, mode: str, config: Any) -> Any:
        """tf.estimator's call of model_fn; puts the model on the wafer if use_cs is set."""

        def call() -> Any:
            # On host and wafer, so that seeds, which depend on the number of operations, are equal.
            with (
                resource_variables(),
                accumulating(accumulated, wanted) as accumulation,
                contextlib.nullcontext() if split is None else split.explaining(),
            ):
                spec = super(CerebrasEstimator, self)._call_model_fn(features, labels, mode, config)
            if mode == _TRAIN and accumulated == 1:
                self._check_accumulation(accumulation)
            return with_host_call(spec, mode)

        on_wafer = self._call.use_cs and _can_be_captured()
        accumulated, wanted = 1, self._batches_per_step // job.wafers() if mode == _TRAIN else 1
        split: Optional[SplitBatch] = None
        if mode == _TRAIN and self._call.batches is not None and on_wafer:
            split = batches_of_step(self._call.batches)
            accumulated = split.count
        else:
            split, features, labels = split_batch(self._config, on_wafer, mode, features, labels)
            self._call.micro_batches *= 1 if split is None else split.count
        self._call.examples, self._call.tokens = sizes(features)
        sparsifier = self._call.sparsifier if mode == _TRAIN else None
        if not on_wafer:
            if sparsifier is not None:
                check_sparsifier(sparsifier, False)
            return call()
        options = compiler_options(self._config, mode)
        outer = enclosing_training() if mode == tf.estimator.ModeKeys.EVAL else None
        lender = None if outer is None or outer.model is None else outer.model.step
        self._call.model = build(
            call,
            mode,
            options,
            self.phases.phase,
            self._config,
            lender,
            self._call.runs,
            sparsifier,
            split,
        )
        model = self._call.model
        model.step.source.cache = self._compiled_programs(mode)
        model.step.source.can_split = lambda: model.can_split((features, labels))
        if options.staging and not self._config.cluster_spec:
            make_lean(tf.compat.v1.get_default_graph())
        return self._call.model.spec

    def _evaluate_build_graph(
        self, input_fn: Any, hooks: Any = None, checkpoint_path: Optional[str] = None
    ) -> Any:
        """tf.estimator's graph of an evaluation; InMemoryEvaluatorHook's is for the host.

        That hook calls it outside of `evaluate`, and sets the variables from the session.
        """
        if not self._call.is_open:
            log_info("InMemoryEvaluatorHook: TensorFlow evaluates on the host")
        theirs: Any = super(CerebrasEstimator, self if self._call.is_open else self._in_call(False))
        return theirs._evaluate_build_graph(input_fn, hooks, checkpoint_path)

    def _call_model_fn_eval(self, input_fn: Any, config: Any) -> Any:
        """tf.estimator's call, with the host call's loss in place of the batches' mean loss."""
        *others, results = super()._call_model_fn_eval(input_fn, config)
        results[LOSS] = results.pop(HOST_CALL_LOSS, results[LOSS])
        return (*others, results)

    def _train_with_estimator_spec(
        self, spec: Any, worker_hooks: Any, hooks: Any, global_step: Any, listeners: Any
    ) -> Any:
        """tf.estimator's training loop, with guards and reports."""
        if self._reports:
            spec = add_reports(spec, self._call, self._given_config)
        elif is_silent() and not self._config.cluster_spec:
            spec = add_progress_lines(spec, self._call, self._given_config)
        if not (self._call.use_cs or spec.scaffold.saver):
            savers = tf.compat.v1.GraphKeys.SAVERS
            if not tf.compat.v1.get_collection(savers):
                tf.compat.v1.add_to_collection(savers, HostSaver(self._config))
        spec, hooks, listeners = add_guards(spec, hooks, listeners, self._call, self._config)
        every_hook = [*hooks, *spec.training_hooks, *spec.training_chief_hooks]
        cluster.coordinate_savers(every_hook, listeners)
        return super()._train_with_estimator_spec(spec, worker_hooks, hooks, global_step, listeners)

    def _export_all_saved_models(self, export_dir_base: Any, *args: Any, **kwargs: Any) -> Any:
        """tf.estimator's export; only the first process's files are kept."""
        folder = export_dir_base if job.is_first() else cluster.scratch_folder()
        with _process_state():
            return super()._export_all_saved_models(folder, *args, **kwargs)

    def _add_meta_graph_for_mode(self, *args: Any, **kwargs: Any) -> Any:
        """A SavedModel holds TensorFlow's own graph: it must run without this package."""
        return super(CerebrasEstimator, self._in_call(False))._add_meta_graph_for_mode(
            *args, **kwargs
        )

    # tf.estimator's current class hides its older name; SavedModels by it are the same.
    export_savedmodel = tf.compat.v1.estimator.Estimator.export_savedmodel


@contextlib.contextmanager
def _process_state() -> Iterator[None]:
    """Within: the process-wide settings that a call needs."""
    with without_deprecation_warnings(), lean_sessions(), cluster.first_writes_events():
        yield


def _checked(batches_per_step: Any) -> int:
    """The number of batches per step; raises ConfigError if it is none for this job's processes."""
    is_number = isinstance(batches_per_step, numbers.Integral)
    if not is_number or isinstance(batches_per_step, bool) or batches_per_step < 1:
        raise ConfigError(
            f"batches_per_step: must be an integer of at least 1. Received: {batches_per_step!r}."
        )
    if batches_per_step > 1 and batches_per_step % job.wafers():
        raise ConfigError(
            f"batches_per_step: must be a multiple of the {job.wafers()} processes of this job. "
            f"Received: {batches_per_step}. Use a multiple, or another number of processes."
        )
    return int(batches_per_step)


def _can_be_captured() -> bool:
    """Whether model_fn is called in a graph whose global step the wafer can set."""
    if tf.executing_eagerly():
        return False
    step = tf.compat.v1.train.get_global_step()
    if step is None or getattr(step, "handle", None) is not None:
        return True
    tf.compat.v1.logging.warning(
        "the model runs on the host, because its global step %s was created with "
        "use_resource=False",
        step.name,
    )
    return False
