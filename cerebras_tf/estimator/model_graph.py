"""Puts one model's graph on the wafer: calls model_fn, captures, wires, and makes the scaffold.

Training is tf.estimator's own loop, with the spec made here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional

import tensorflow as tf

from cerebras_tf.address.choose import choose_wafer
from cerebras_tf.capture.capture import Capture
from cerebras_tf.capture.cross_wafer import is_cross_wafer_sum
from cerebras_tf.capture.custom_gradients import CustomGradient, prepare_custom_gradients
from cerebras_tf.capture.lowerable import result_tensors
from cerebras_tf.capture.moments import find_moments
from cerebras_tf.capture.order import all_before
from cerebras_tf.capture.placement import Placement
from cerebras_tf.capture.recording import GradientCall, GradientRecorder
from cerebras_tf.capture.variables import managed_variables, resource_variables, variable_spec
from cerebras_tf.checkpoints.scaffold import wafer_scaffold
from cerebras_tf.checkpoints.stored_variables import StoredVariables
from cerebras_tf.compiler.pipeline import Options
from cerebras_tf.console.log import log_info
from cerebras_tf.errors import ConfigError, DataError, UnsupportedOpError
from cerebras_tf.estimator.sparse_training import SparseTraining
from cerebras_tf.frontend.model_step import RunSettings
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.ir.program import Program
from cerebras_tf.kernels.compiled_threads import set_num_threads
from cerebras_tf.memoryx.borrowing_store import BorrowingStore
from cerebras_tf.memoryx.disk import FileDisk, PlannedDisk
from cerebras_tf.memoryx.file_store import FileStore
from cerebras_tf.memoryx.process_folder import folder_of
from cerebras_tf.memoryx.store import MemoryStore, Store
from cerebras_tf.runtime.capacity import memory_share
from cerebras_tf.runtime.profiler import Profiler
from cerebras_tf.runtime.shared_store import SharedStore
from cerebras_tf.runtime.streaming_plan import check_disk
from cerebras_tf.step.cluster import loading_swarm_for, swarm_for
from cerebras_tf.step.session_hook import WaferHook
from cerebras_tf.step.split_batch import SplitBatch
from cerebras_tf.step.tensorflow_step import TensorFlowModel, TensorFlowStep, can_split
from cerebras_tf.step.wiring import Wiring
from cerebras_tf.swarmx import job, mpi
from cerebras_tf.tf_compat.internals import training_util
from cerebras_tf.tf_session.structures import leaves, map_fetches

Phase = Callable[..., Any]


@dataclass
class ModelGraph:
    """A model's graph with its step on the wafer.

    Attributes:
        spec: the spec for tf.estimator's loop; fetching it runs the wafer.
        wiring: the nodes between both.
        sparse: the pruned weights; None without pruning.
        has_own_summaries: whether summaries depend on the batch of a single wafer of several.
    """

    spec: Any
    step: TensorFlowStep
    store: Store
    wiring: Wiring
    fed: list[Any] = field(default_factory=list)
    sparse: Optional[SparseTraining] = None
    has_own_summaries: bool = False

    def can_split(self, batch: Any) -> bool:
        """Whether its batches can be split into micro-batches."""
        return can_split(batch, self.fed)

    def compiled(self, input_hooks: Any, updates: bool) -> Program:
        """Compiles the program for its batches.

        Args:
            input_hooks: start the input, if sizes are known only with a batch.
            updates: whether a step changes variables.
        """
        self.wiring.reroute()
        types = self.step.static_types()
        if types is None:
            types = self._types_of_first_batch(input_hooks)
        self.step.want(frozenset() if updates else self._read_of_step(), updates)
        return self.step.compile_to_save(types)

    def _read_of_step(self) -> frozenset[str]:
        """Names of the values that evaluation or prediction reads of every step."""
        spec = self.spec
        predicts = spec.mode == tf.estimator.ModeKeys.PREDICT
        read = _operations(spec.predictions if predicts else [spec.loss, spec.eval_metric_ops])
        return frozenset[str]().union(*map(self.wiring.needs, read))

    def _types_of_first_batch(self, input_hooks: Any) -> dict[str, TensorType]:
        nothing = tf.constant([], tf.string)
        scaffold = tf.compat.v1.train.Scaffold(
            init_op=tf.no_op(), ready_op=nothing, ready_for_local_init_op=nothing
        )
        arrays = None
        # The session's block ends where the data end.
        with tf.compat.v1.train.SingularMonitoredSession(input_hooks, scaffold) as session:
            arrays = session.run(self.fed)
        if arrays is None:
            raise DataError(
                "input_fn: must yield at least one batch. Received: none. Add data, or skip fewer."
            )
        return {
            tensor.name: TensorType(array.dtype.name, array.shape)
            for tensor, array in zip(self.fed, arrays)
        }


def build(
    call_model_fn: Callable[[], Any],
    mode: str,
    options: Options,
    phase: Phase,
    config: Any,
    lender: Optional[TensorFlowStep] = None,
    runs: bool = True,
    sparsifier: Any = None,
    split: Optional[SplitBatch] = None,
) -> ModelGraph:
    """Calls a model function and puts its step on the wafer.

    Args:
        call_model_fn: calls it in the default graph and returns an EstimatorSpec.
        phase: context manager that logs a named phase; see PhaseReporter.
        lender: the step of the enclosing training. It lends its variables if the evaluation reads
            the checkpoint that holds exactly these.
        runs: whether steps will run; if not, variables get neither values nor files.
        sparsifier: prunes weights of a training; None for no pruning.
        split: how a batch is split into micro-batches; None if it runs whole.

    Raises:
        UnsupportedOpError: the model needs operations without an IR form; all are listed.
    """
    set_num_threads(config.num_threads)
    with phase("building the graph"):
        training_util._get_or_create_global_step_read()  # before the model
        model = record(call_model_fn, split is None and swarm_for(mode).size == 1)
        model.store_moments(config.memoryx_moment_dtype, mode)
        wafer = choose_wafer(
            config.cs_ip, config.credentials_path, lambda line: log_info("%s", line)
        )
        if wafer is None:
            store = _make_store(model.specs(), mode, config, lender, runs)
        else:
            # A single wafer cannot lend variables that are sharded.
            lends = None if lender is None or job.wafers() > 1 else lender.store
            options = replace(options, staging=wafer.on_files)
            store = wafer.store(model.specs(), lends, runs, swarm_for(mode).size > 1)
        try:
            sparse = None if sparsifier is None else SparseTraining(sparsifier, store.specs)
            settings = replace(_settings(config, mode, phase, split), wafer=wafer)
            return _wired(model, mode, options, settings, config, lender, store, sparse)
        except BaseException:
            store.close()
            raise


def _wired(
    model: Recording,
    mode: str,
    options: Options,
    settings: RunSettings,
    config: Any,
    lender: Optional[TensorFlowStep],
    store: Store,
    sparse: Optional[SparseTraining],
) -> ModelGraph:
    split = settings.micro_batches
    assert split is None or isinstance(split, SplitBatch)
    spec, placement, global_step = model.spec, model.placement, model.global_step
    step_read = training_util._get_or_create_global_step_read()
    effects = _train_operations(model) if mode == tf.estimator.ModeKeys.TRAIN else []
    fed, independent = placement.boundary(model.capture({}), _roots(placement, spec, effects))
    placement.check_fetches(_fetched(spec))
    if mode != tf.estimator.ModeKeys.TRAIN:
        _refuse_assignments(placement.assignments(_fetched(spec)), mode)
    front_end = TensorFlowModel(
        model.capture,
        model.capture_whole if model.gradients else None,
        fed,
        effects,
        global_step.op.name,
        placement.control_inputs,
        None if spec.loss is None else spec.loss.name,
        split=split,
    )
    options = replace(options, sparse=() if sparse is None else sparse.weights)
    step = TensorFlowStep(front_end, store, options, settings)
    metrics = _operations(spec.eval_metric_ops)
    checks = [*independent, *placement.after_step, *placement.with_checks]
    whole = fed if split is None else split.fed(fed, checks, placement.on_wafer)
    wiring = Wiring(
        step, placement, whole, global_step, step_read, independent, bool(effects), metrics
    )
    stored = StoredVariables(model.variables, store)

    def start(session: Any) -> None:
        if sparse is not None:
            sparse.apply(store, int(session.run(step_read)))

    hook = WaferHook(wiring, effects[0] if effects else None, stored, start)
    scaffold = wafer_scaffold(
        spec.scaffold,
        model.variables,
        stored,
        config,
        settings.phase,
        hook.connect,
        step if mode == tf.estimator.ModeKeys.TRAIN else None,
        lender,
    )
    spec = _rerouted(spec, wiring, hook, scaffold, mode)
    own = bool(effects) and step.swarm.size > 1 and _has_own_summaries(model, fed)
    return ModelGraph(spec, step, store, wiring, fed, sparse, own)


def _settings(config: Any, mode: str, phase: Phase, split: Optional[SplitBatch]) -> RunSettings:
    """How the steps of a model are run. Of several processes, the first is profiled."""
    profiles = mode == tf.estimator.ModeKeys.TRAIN and config.profile
    return RunSettings(
        config.wafer_memory_gb,
        split,
        swarm_for(mode),
        loading_swarm_for(mode),
        Profiler() if profiles and job.is_first() else None,
        phase,
        log=lambda line: log_info("%s", line),
    )


def _has_own_summaries(model: Recording, fed: list[Any]) -> bool:
    """Whether a summary depends on the batch other than through values of all wafers.

    Those are the loss, gradients of variables, and sums over wafers.
    """
    of_all = {model.spec.loss.op}
    for call in model.gradients:
        gradients = [r for x, r in zip(call.xs, call.results) if x.dtype == tf.resource]
        of_all.update(tensor.op for tensor in result_tensors(replace(call, results=gradients)))
    summaries = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SUMMARIES)
    before = all_before(
        [summary.op for summary in summaries],
        lambda _: (),
        lambda op: op in of_all or (op.type == "Identity" and is_cross_wafer_sum(op)),
    )
    return not {tensor.op for tensor in fed}.isdisjoint(before)


def _make_store(
    specs: list[Variable], mode: str, config: Any, lender: Optional[TensorFlowStep], runs: bool
) -> Store:
    folder = config.memoryx_dir
    own: Store
    if folder is None:
        own = MemoryStore(specs)
    elif not runs:
        own = FileStore(specs, PlannedDisk(_ram_bytes(config, mode), folder))
    else:
        if job.wafers() > 1:
            folder = folder_of(job.rank(), folder)
        if mode == tf.estimator.ModeKeys.TRAIN:  # other modes share or borrow existing variables
            check_disk(specs, folder, swarm_for(mode).size)
        own = FileStore(specs, FileDisk(folder, _ram_bytes(config, mode)))
    swarm = swarm_for(mode)
    if swarm.size > 1:
        return SharedStore(own, swarm)
    # A single wafer cannot lend variables that are sharded.
    return own if lender is None or job.wafers() > 1 else BorrowingStore(own, lender.store)


def _ram_bytes(config: Any, mode: str) -> int:
    """Main memory of a store on files: memoryx_ram_gb, or half of the wafer's share of free memory.

    In prediction, a wafer cannot agree on a share with others.
    """
    if config.memoryx_ram_gb is None and mode == tf.estimator.ModeKeys.PREDICT:
        return int(config.memoryx_bytes) // job.wafers()
    share = memory_share(mpi.swarm()) if config.memoryx_ram_gb is None else None
    return int(config.memoryx_bytes) if share is None else share // 2


@dataclass(frozen=True)
class Recording:
    """The result of a model function: its spec, and its graph as capture needs it.

    `stored` are the variables whose storage dtype differs from the model's, by name.
    """

    spec: Any
    global_step: Any
    variables: dict[str, Any]
    handles: dict[Any, Variable]
    gradients: list[GradientCall]
    custom_gradients: dict[Any, Optional[CustomGradient]]
    placement: Placement
    stored: dict[str, Variable] = field(default_factory=dict)

    def store_moments(self, dtype: Optional[str], mode: str) -> None:
        """Stores the optimizer's moments in a dtype; None for that of the model.

        Raises:
            ConfigError: training has none.
        """
        if dtype is None or mode != tf.estimator.ModeKeys.TRAIN:
            return
        graph = tf.compat.v1.get_default_graph()
        specs = {variable.name: variable for variable in self.handles.values()}
        for name in sorted(find_moments(graph, self.handles)):
            self.stored[name] = replace(specs[name], type=specs[name].type.with_dtype(dtype))
        if not self.stored:
            raise ConfigError(
                "memoryx_moment_dtype: the optimizer must have moving averages of gradients with "
                "a constant decay, as Adam and AdamW do. Received: another optimizer. Remove "
                "memoryx_moment_dtype."
            )
        size = sum(spec.type.max_bytes for spec in self.stored.values())
        log_info(
            "%d moments of the optimizer are stored in %s: %.3g GB instead of %.3g GB",
            *(len(self.stored), dtype, size / 1e9, 2 * size / 1e9),
        )

    def specs(self) -> list[Variable]:
        """The variables as the store keeps them."""
        return [self.stored.get(n, variable_spec(v)) for n, v in self.variables.items()]

    def capture(self, features: dict[Any, TensorType]) -> Capture:
        """A capture that differentiates recorded gradients in the IR."""
        return self._capture(features, self.gradients, ())

    def capture_whole(self, features: dict[Any, TensorType]) -> Capture:
        """A capture of TensorFlow's own backward graph."""
        return self._capture(features, (), self.gradients)

    def _capture(
        self,
        features: dict[Any, TensorType],
        gradients: Sequence[GradientCall],
        whole: Sequence[GradientCall],
    ) -> Capture:
        return Capture(
            self.handles,
            features,
            gradients,
            self.custom_gradients,
            self.placement.control_inputs,
            whole,
            self.stored,
            self.placement.sizes,
        )


def record(call_model_fn: Callable[[], Any], whole: bool = True) -> Recording:
    """Calls a model function in the default graph, and records what capture needs.

    Args:
        whole: see Placement.
    """
    graph = tf.compat.v1.get_default_graph()
    start = len(graph.get_operations())
    recorder = GradientRecorder()
    with recorder:
        spec = call_model_fn()
    with resource_variables():
        global_step = tf.compat.v1.train.get_or_create_global_step()  # perhaps model_fn's own
    custom = prepare_custom_gradients(graph, recorder)
    owned = managed_variables(graph, start)
    handles = {op: variable_spec(variable) for op, variable in owned.items()}
    handles[global_step.handle.op] = variable_spec(global_step)
    step = global_step.handle.op
    placement = Placement(graph, start, handles, step, recorder.calls, whole)
    placement.update()
    for op in graph.get_operations():
        # Private API: stack traces of device scopes, a tenth of an operation's memory, used only in
        # messages about devices.
        op._device_code_locations = op._colocation_code_locations = None
    variables = {variable.op.name: variable for variable in owned.values()}
    return Recording(spec, global_step, variables, handles, recorder.calls, custom, placement)


def _roots(placement: Placement, spec: Any, effects: list[Any]) -> list[Any]:
    """Operations whose values the session or the training op needs."""
    readers = [tensor.op for _, _, tensor in placement.host_readers()]
    named = [spec.loss, *leaves(spec.predictions)]
    own = [t.op for t in named if isinstance(t, tf.Tensor) and placement.on_wafer(t.op)]
    return [*effects, *own, *readers]


def _train_operations(model: Recording) -> list[Any]:
    """Operations whose assignments a training step makes.

    Raises:
        UnsupportedOpError: they would update what the session reads before the step.
    """
    foreign = [
        v.op.name
        for v in tf.compat.v1.global_variables()
        if isinstance(v, tf.Variable) and v.trainable
        if v.dtype.is_floating and v.op.name not in model.variables
    ]
    if foreign:
        raise UnsupportedOpError(
            "input_fn: trainable variables must be created in model_fn. Received: "
            f"{', '.join(foreign[:3])}{', ...' if len(foreign) > 3 else ''}. Create them in "
            "model_fn, or with trainable=False."
        )
    train_op = model.spec.train_op
    return [train_op.op if isinstance(train_op, tf.Tensor) else train_op]


def _refuse_assignments(assignments: list[Any], mode: str) -> None:
    """Refuses assignments in evaluation and prediction, where the wafer changes no variables."""
    names = [f"'{op.name}' ({op.type})" for op in assignments]
    if names:
        raise UnsupportedOpError(
            f"{mode}: only training may assign variables of the model. Received: "
            f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}. Assign only in mode "
            "TRAIN, or use a local variable."
        )


def _fetched(spec: Any) -> list[Any]:
    """Operations that tf.estimator's loop fetches of a model."""
    summaries = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SUMMARIES)
    return _operations([spec.loss, spec.predictions, spec.eval_metric_ops, summaries])


def _operations(structure: Any) -> list[Any]:
    """Operations that make the leaves of a structure."""
    # The result of an assignment is neither a tensor nor an operation, but has an operation.
    operations = [
        item if isinstance(item, tf.Operation) else getattr(item, "op", None)
        for item in tf.nest.flatten(structure)
    ]
    return [op for op in operations if isinstance(op, tf.Operation)]


def _rerouted(spec: Any, wiring: Wiring, hook: WaferHook, scaffold: Any, mode: str) -> Any:
    """The spec with tensors of the wafer replaced by what the session can fetch."""

    def entry(tensor: Any) -> Any:
        if isinstance(tensor, tf.Tensor) and wiring.placement.on_wafer(tensor.op):
            return wiring.entry(tensor)
        return tensor

    changes: dict[str, Any] = {"scaffold": scaffold, "loss": entry(spec.loss)}
    if spec.predictions is not None:
        predictions = map_fetches(spec.predictions, entry)
        if mode == tf.estimator.ModeKeys.PREDICT:
            predictions = map_fetches(predictions, wiring.checked)
        changes["predictions"] = predictions
    if mode == tf.estimator.ModeKeys.TRAIN:
        changes["train_op"] = wiring.train_op
        changes["training_hooks"] = [*spec.training_hooks, hook]
    elif mode == tf.estimator.ModeKeys.EVAL:
        changes["loss"] = wiring.checked(changes["loss"])
        changes["evaluation_hooks"] = [*(spec.evaluation_hooks or []), hook]
        changes["eval_metric_ops"] = {
            name: (value if _is_of_variables(value, wiring.placement) else entry(value), update)
            for name, (value, update) in (spec.eval_metric_ops or {}).items()
        }
    else:
        changes["prediction_hooks"] = [*(spec.prediction_hooks or []), hook]
    return spec._replace(**changes)


def _is_of_variables(value: Any, placement: Placement) -> bool:
    """Whether a metric can be fetched without a batch, after the end of the data."""
    return isinstance(value, tf.Tensor) and placement.depends_on_variables_only(value.op)
