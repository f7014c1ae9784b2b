"""Every option of a run, one field each: its name, type, default, checks and text.

The arguments of CSRunConfig, the section `runconfig` of a params file, the flags of the command
line, and their reference pages follow from these fields. To add an option, add a field to the class
of the place where it is available, and read it where it is used.

Besides the checks of `schema.field` a field here may have:

- `flag`: metavar of the command line's option of that name, "" for a switch; without it there is
  none. `short` is its short form.
- `on_wafer`: for an option that affects the wafer only, the values without effect. The host logs a
warning for others.
- `of_cluster`: True for a key of the real cluster, which has no effect here.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

from cerebras_tf.config.address import address_problem
from cerebras_tf.config.schema import build_section, field, regular_expressions
from cerebras_tf.quantities import MAX_GB

# What the runner does, by mode.
MODES = {
    "train": "train up to max_steps, resuming from the latest checkpoint",
    "eval": "evaluate the latest checkpoint, or that of --checkpoint_path",
    "train_and_eval": "train, and evaluate at every checkpoint",
    "eval_all": "evaluate every checkpoint of model_dir",
    "predict": "write predictions for predict_input",
}

_OF_CLUSTER = "Accepted for compatibility with params files of the platform. Has no effect."


LOGGERS = ("tensorboard", "csv", "wandb")


def _loggers_problem(names: tuple[str, ...]) -> Optional[str]:
    if all(name in LOGGERS for name in names):
        return None
    return f"must be a list of {', '.join(LOGGERS)}."


def _folder_problem(folder: str) -> Optional[str]:
    if folder.strip() and not re.search(r"\0|^~|://", folder):
        return None
    return "must be a local path without ~."


def _device_problem(device: str) -> Optional[str]:
    known = re.fullmatch(r"/?(device:)?(cpu:0|(?!cpu)[a-z_]*[gt]pu:\d+)", device, re.IGNORECASE)
    return None if known else "must be a TensorFlow device, such as /cpu:0 or /gpu:0."


def address_problems(options: Any) -> Iterator[tuple[str, str]]:
    """What is wrong with options of a wafer at an address: names and texts."""
    if options.credentials_path is None:
        return
    if not (options.cs_ip or "").strip():
        yield "credentials_path", "has no effect without cs_ip. Set that too, or remove it."
    for name in ("memoryx_dir", "num_threads"):
        if getattr(options, name, None) is not None:
            text = "cannot be combined with credentials_path: it is of this computer, and the wafer"
            yield name, f"{text} is at cs_ip. Remove it."


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """Options that are arguments of CSRunConfig and keys of `runconfig`."""

    cs_ip: Optional[str] = field(
        None,
        "Address of the wafer, HOST or HOST:PORT. An empty or loopback address means the emulated "
        "wafer in this process, unless `credentials_path` is set.",
        check=address_problem,
        flag="IP",
    )
    credentials_path: Optional[str] = field(
        None,
        "File of a client's credentials for the wafer at `cs_ip`, see `cerebras-tf serve`. null: "
        "the wafer is in this process.",
        path="as given",
        flag="FILE",
    )
    num_csx: int = field(
        1,
        "Number of wafers. A step trains on one batch per wafer and averages their gradients. "
        "With `csrun_wse --num_csx N`, or with Slurm, each wafer is a process, and gradients are "
        "weighted per token. Otherwise one process computes the batches as micro-batches, like "
        "`optimizer.grad_accum_steps`, and gradients are weighted per batch. The number can "
        "change when a run is resumed; training continues at the same position in the data.",
        minimum=1,
        flag="N",
    )
    restore_partially: bool = field(
        False,
        "Whether to load a checkpoint that has only some of the model's variables. Missing "
        "variables are initialized, and variables that are not in the model are ignored. Shapes "
        "must be equal.",
    )
    memoryx_dir: Optional[str] = field(
        None,
        "Folder of the files that store weights and optimizer state, for models larger than "
        "memory. null: stored in main memory. Checkpoints on the same file system share these "
        "files by hard links.",
        path="as given",
        check=_folder_problem,
        on_wafer=(None,),
    )
    memoryx_ram_gb: Optional[float] = field(
        None,
        "Main memory that weights and optimizer state may use with `memoryx_dir`, in 10^9 bytes "
        "per wafer. null: half of the free memory at the start. Evaluating a checkpoint other "
        "than the latest during training can use this amount again.",
        above=0.0,
        below=MAX_GB,
        on_wafer=(None,),
    )
    memoryx_moment_dtype: Optional[str] = field(
        None,
        "Storage dtype of the optimizer's moments (moving averages of gradients and of squared "
        "gradients), also in checkpoints. null: float32. bfloat16 needs half of the memory. "
        "Moments are updated in float32 and rounded stochastically and reproducibly. Weights stay "
        "float32. Checkpoints can be loaded with either setting.",
        choices=("bfloat16",),
        on_wafer=(None,),
    )
    wafer_memory_gb: Optional[float] = field(
        None,
        "Memory that activations, gradients and scratch memory of training may use, in 10^9 "
        "bytes. If they need more, layers are recomputed, or with `memoryx_dir` activations are "
        "spilled to disk, with equal results. null: 90 % of the available memory.",
        above=0.0,
        below=MAX_GB,
        on_wafer=(None,),
    )
    micro_batches: int = field(
        1,
        "Number of equal micro-batches that a training batch is split into, to reduce the memory "
        "of activations. Gradients and loss are equal to those of the whole batch, except for "
        "rounding and random operations: every token has the same weight, unlike with "
        "`optimizer.grad_accum_steps`. A loss that divides by a count must use cross_wafer_sum. "
        "In model_fn, the number of rows of features is unknown. Of other values of a step, sums "
        "are added up, and all others are averaged; a log line names those that this only "
        "approximates.",
        minimum=1,
        on_wafer=(1,),
    )
    precision: Optional[str] = field(
        None,
        "Precision of matrix products on the wafer. float32: used for all graphs, including those "
        "in half precision. bfloat16: rounds operands and keeps sums, weights and optimizer state "
        "in float32; faster on processors with AMX or AVX512-BF16. emulate: rounds the result of "
        "every operation to its dtype in the graph; slow, to study overflow and loss scaling. "
        "null: bfloat16 if use_cbfloat16 is set, else float32.",
        choices=("float32", "bfloat16", "emulate"),
        on_wafer=(None, "float32"),
    )
    attention_precision: Optional[str] = field(
        None,
        "With precision bfloat16, precision of the products of attention: queries by keys, "
        "probabilities by values, and those of their gradients. The softmax is float32. null: "
        "bfloat16.",
        choices=("float32", "bfloat16"),
    )
    keep_float32: tuple[str, ...] = field(
        (),
        "Regular expressions of operation names. With bfloat16, matrix products of matching "
        "operations use float32. An expression without a match is an error.",
        check=regular_expressions,
    )
    profile: Optional[int] = field(
        None,
        "Number of training steps to profile, after the first two. Writes a trace for "
        "ui.perfetto.dev to `profile/trace.json` in model_dir, and logs where time is spent.",
        minimum=1,
        flag="N",
    )
    multireplica: bool = field(
        False,
        "Place several replicas of the model on the wafer and split every training batch among "
        "them. Gradients are averaged. Only in pipelined mode. The fastest number of replicas is "
        "selected and logged. It affects predictions for a CS-2; the emulated wafer computes all "
        "replicas together.",
        flag="",
        on_wafer=(False,),
    )
    loggers: tuple[str, ...] = field(
        ("tensorboard",),
        "Logs of the scalars of training and evaluation. tensorboard: event files, which are "
        "always written. csv: also `metrics.csv` in model_dir and, for evaluations, in its folder "
        "`eval`. wandb: also a run of Weights & Biases, which must be installed (`pip install "
        "wandb`); its environment variables, such as WANDB_PROJECT, apply.",
        check=_loggers_problem,
    )
    num_threads: Optional[int] = field(
        None,
        "Number of threads for the kernels of a wafer. null: the environment variable "
        "CEREBRAS_TF_THREADS, or one per core. It does not apply to the host; see "
        "`tf.config.threading`.",
        minimum=1,
        below=1025,
        on_wafer=(None,),
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from address_problems(self)
        if self.memoryx_ram_gb is not None and self.memoryx_dir is None:
            yield "memoryx_ram_gb", "has no effect without memoryx_dir. Set that too."


@dataclass(frozen=True, kw_only=True)
class EstimatorOptions(SharedOptions):
    """The arguments of CSRunConfig besides those of tf.estimator.RunConfig."""

    num_csx: Optional[int] = field(  # type: ignore[assignment]
        None,
        "Number of wafers, with one process each, started by csrun_wse. None: "
        "`cs_config.num_csx`. 1: the number that the launcher started.",
        minimum=1,
    )
    system_name: Optional[str] = field(None, "A name for the system. Has no effect.")
    cs_config: Any = field(
        None, "A configuration message such as `cerebras.pb.tf.csconfig_pb2.CSConfig`."
    )
    stack_params: Any = field(
        None,
        'Compiler settings of the platform, `{"ir_mode": str, "config": FullConfig}`. Has no '
        "effect.",
    )
    use_vsl: Optional[bool] = field(
        None,
        "Whether padding is removed (variable sequence length). None: removed if the compiler "
        "proves that results do not change. False: never. True: an error is raised if the proof "
        "fails, predictions are 0 at padded positions, and padding of causal models that is given "
        "only by the loss weights is also removed.",
        on_wafer=(None, False),
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.use_vsl and self.precision == "emulate":
            yield (
                "use_vsl",
                "must not be True with precision emulate. Set it to False, or remove it.",
            )
        precision = self.resolved_precision
        for name in ("keep_float32", "attention_precision"):
            if getattr(self, name) and precision != "bfloat16":
                yield (
                    name,
                    f"has no effect with precision {precision}. Set precision to bfloat16, or "
                    f"remove {name}.",
                )

    @property
    def resolved_precision(self) -> str:
        """The precision; by default that of `cs_config`."""
        if self.precision is not None:
            return self.precision
        return "bfloat16" if getattr(self.cs_config, "use_cbfloat16", False) else "float32"


@dataclass(frozen=True)
class KeepBest:
    """Which checkpoint of ``train_and_eval`` is copied to ``model_dir/best``.

    `mode` is whether the smallest or the largest value is the best.
    """

    metric: str = "loss"
    mode: str = field("min", choices=("min", "max"))


@dataclass(frozen=True)
class EarlyStopping:
    """When ``train_and_eval`` ends early: after `patience` evaluations without a better value.

    A value is better if it differs from the best before by more than `min_delta`.
    """

    metric: str = "loss"
    mode: str = field("min", choices=("min", "max"))
    patience: int = field(3, minimum=1)
    min_delta: float = field(0.0, minimum=0.0)


@dataclass(frozen=True, kw_only=True)
class RunConfigParams(SharedOptions):
    """The section ``runconfig``; the command line's flags set its keys, `mode` among them."""

    mode: Optional[str] = field(None, "Mode of the run.", choices=tuple(MODES))
    model_dir: Optional[str] = field(
        None,
        "Model folder, for checkpoints and events. A run resumes from its latest checkpoint. "
        "null: model_dir/NAME for a params file params_NAME.yaml.",
        path="as given",
        flag="DIR",
        short="-o",
    )
    max_steps: Optional[int] = field(
        None, "Global step at which training ends.", minimum=1, long=True, flag="N"
    )
    steps: Optional[int] = field(
        None,
        "Number of steps to train in this run. As a flag, it replaces max_steps of the params "
        "file, and --max_steps replaces steps.",
        minimum=1,
        long=True,
        flag="N",
    )
    eval_steps: Optional[int] = field(
        None,
        "Number of batches of an evaluation. null, or 0 or less: the whole data set.",
        long=True,
        flag="N",
    )
    predict_steps: Optional[int] = field(
        None,
        "Number of batches of a prediction. null: all prompts, or one batch of other data.",
        minimum=1,
    )
    save_summary_steps: int = field(100, "Steps between summaries.", minimum=1, long=True, flag="N")
    save_checkpoints_steps: int = field(
        1000, "Steps between checkpoints.", minimum=1, long=True, flag="N"
    )
    keep_checkpoint_max: int = field(5, "Maximum number of checkpoints to keep. 0: all.", minimum=0)
    log_step_count_steps: Optional[int] = field(
        None, "Steps between lines on the console. null: save_summary_steps.", minimum=1, long=True
    )
    disable_standard_logs: bool = field(False, "Whether to disable the lines on the console.")
    sample_every: Optional[int] = field(
        None,
        "Steps between samples of a language model in training: a text on the console and for "
        "TensorBoard. A multiple of save_checkpoints_steps, because checkpoints generate them. "
        "null: none.",
        minimum=1,
        long=True,
        flag="N",
    )
    sample_prompt: str = field(
        "", "Beginning of these samples. Empty: the end-of-text token.", flag="TEXT"
    )
    throttle_secs: int = field(
        0, "Minimum time between evaluations of train_and_eval, in seconds.", minimum=0
    )
    tf_random_seed: Optional[int] = field(None, "Graph-level random seed of TensorFlow.", long=True)
    compile_dir: Optional[str] = field(
        None, "Folder for compiled programs. null: `compiled` in model_dir.", path="as given"
    )
    device: Optional[str] = field(
        None,
        "Run the model on a TensorFlow device, such as /cpu:0, instead of the wafer.",
        check=_device_problem,
        flag="DEVICE",
    )
    checkpoint_path: Optional[str] = field(
        None,
        "Checkpoint to start from or to evaluate. Training loads only its weights.",
        path="as given",
        flag="CKPT",
    )
    resume_from: Optional[str] = field(
        None,
        "Checkpoint to resume from in a new model_dir. Training also loads its step and optimizer "
        "state.",
        path="as given",
        flag="CKPT",
    )
    keep_best_checkpoint: Any = field(
        None,
        "Keeps a copy of the best checkpoint of train_and_eval in `best` in model_dir.",
        build=build_section(KeepBest),
    )
    early_stopping: Any = field(
        None,
        ("Ends train_and_eval early if evaluations do not improve."),
        build=build_section(EarlyStopping),
    )
    validate_only: bool = field(
        False,
        "Only check the params file, the data, checkpoints and the memory, without training. "
        "Ends with the exit code of the run.",
        flag="",
    )
    compile_only: bool = field(
        False, "Only compile the model, save the program and predict its speed on a CS-2.", flag=""
    )
    execution_strategy: Optional[str] = field(
        None,
        "Execution mode that the launcher must have: weight_streaming for python-ws, pipeline for "
        "python.",
        choices=("weight_streaming", "pipeline"),
    )
    disable_input_pipeline_ckpt: bool = field(
        False, "Whether a resumed run starts at the beginning of its data."
    )
    enable_distributed: bool = field(False, "Must be False: multi-GPU training is not supported.")
    use_cs_grad_accum: bool = field(
        False,
        f"{_OF_CLUSTER} Activations that do not fit in memory are recomputed or spilled.",
        of_cluster=True,
    )
    num_wgt_servers: Optional[int] = field(None, _OF_CLUSTER, minimum=1, of_cluster=True)
    multiple_workers: bool = field(False, _OF_CLUSTER, of_cluster=True)
    ir_mode: str = field("mlir-cirh", _OF_CLUSTER, of_cluster=True)
    mgmt_address: Optional[str] = field(None, _OF_CLUSTER, of_cluster=True, flag="ADDRESS")
    mount_dirs: tuple[str, ...] = field((), _OF_CLUSTER, of_cluster=True, flag="DIR")
    python_paths: tuple[str, ...] = field((), _OF_CLUSTER, of_cluster=True, flag="DIR")

    def without_effect(self) -> list[str]:
        """Returns the keys of the real cluster that were given, which have no effect here."""
        return [
            each.name
            for each in dataclasses.fields(self)
            if each.metadata.get("of_cluster") and getattr(self, each.name) != each.default
        ]

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.sample_every and self.sample_every % self.save_checkpoints_steps:
            yield (
                "sample_every",
                f"must be a multiple of save_checkpoints_steps, {self.save_checkpoints_steps}.",
            )
        if self.sample_prompt and not self.sample_every:
            yield "sample_prompt", "has no effect without sample_every. Set that too."
        if self.validate_only and self.compile_only:
            yield "compile_only", "cannot be combined with validate_only. Remove one of them."
        if self.checkpoint_path and self.resume_from:
            yield "resume_from", "cannot be combined with checkpoint_path. Remove one of them."
        if self.device and self.cs_ip:
            yield "device", "cannot be combined with cs_ip. Remove one of them."
        if self.device and self.compile_only:
            yield "compile_only", "cannot be combined with device. Remove one of them."
        if self.enable_distributed:
            yield "enable_distributed", "must be False: GPUs are not supported. Remove the key."


def without_none(hint: Any) -> Any:
    """Returns the type of a value that is given: `int` of `Optional[int]`."""
    kept = [option for option in typing.get_args(hint) if option is not type(None)]
    return kept[0] if typing.get_origin(hint) is typing.Union and len(kept) == 1 else hint
