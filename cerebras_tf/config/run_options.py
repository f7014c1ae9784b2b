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
    "train": "train up to max_steps, or go on from the last checkpoint",
    "eval": "evaluate the last checkpoint, or the one of --checkpoint_path",
    "train_and_eval": "train, and evaluate at every checkpoint",
    "eval_all": "evaluate every checkpoint of model_dir",
    "predict": "write predictions of a checkpoint for predict_input",
}

_OF_CLUSTER = "A key of the real cluster, accepted so that its params files load. It has no effect."


def _folder_problem(folder: str) -> Optional[str]:
    if folder.strip() and not re.search(r"\0|^~|://", folder):
        return None
    return "must name a folder of this computer, by a path without ~."


def _device_problem(device: str) -> Optional[str]:
    known = re.fullmatch(r"/?(device:)?(cpu:0|(?!cpu)[a-z_]*[gt]pu:\d+)", device, re.IGNORECASE)
    return None if known else "must be a device of TensorFlow, such as /cpu:0 or /gpu:0."


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """Options that are arguments of CSRunConfig and keys of `runconfig`."""

    cs_ip: Optional[str] = field(
        None,
        "Address of the wafer, HOST or HOST:PORT; empty or loopback is the one emulated in this "
        "process.",
        check=address_problem,
        flag="IP",
    )
    num_csx: int = field(
        1,
        "Number of wafers. A step trains on the batches of all, with their gradients averaged. "
        "`csrun_wse --num_csx N` starts a process for each, with Slurm by this key alone; without "
        "it one process computes their batches as micro-batches, as it does with "
        "`optimizer.grad_accum_steps`. Then each batch has the same weight; over processes each "
        "token or masked word of a step has. It may change at a checkpoint: the data continue "
        "where they were.",
        minimum=1,
        flag="N",
    )
    restore_partially: bool = field(
        False,
        "Whether training may go on from a checkpoint that fits the model in part. Variables that "
        "the model lacks are dropped, those that the checkpoint lacks are initialized. Shapes must "
        "be equal.",
    )
    memoryx_dir: Optional[str] = field(
        None,
        "Folder of the files that store weights and optimizer state; null stores them in main "
        "memory. With it a model may be larger than memory. Checkpoints share its contents by "
        "links where they are on the same file system.",
        path="as given",
        check=_folder_problem,
        on_wafer=(None,),
    )
    memoryx_ram_gb: Optional[float] = field(
        None,
        "Main memory that weights and optimizer state may take with `memoryx_dir`, in 10^9 bytes "
        "for each wafer; null takes half of what is free when a call begins. An evaluation during "
        "training uses what training holds; one of another checkpoint than the last holds its own, "
        "up to as much again.",
        above=0.0,
        below=MAX_GB,
        on_wafer=(None,),
    )
    memoryx_moment_dtype: Optional[str] = field(
        None,
        "Storage dtype of the optimizer's moments (moving averages of gradients and of their "
        "squares), also in checkpoints: null for float32. bfloat16 takes half of the bytes. "
        "Moments are updated in float32 and rounded stochastically by a stream of the variable and "
        "the step, so that a repeated run gives the same bits; weights stay float32. Checkpoints "
        "of either kind can be read with and without it.",
        choices=("bfloat16",),
        on_wafer=(None,),
    )
    wafer_memory_gb: Optional[float] = field(
        None,
        "Memory that activations, gradients and scratch memory of training may take, in 10^9 "
        "bytes. Where they need more, layers are recomputed, or with `memoryx_dir` activations are "
        "spilled to its disk between the passes, with equal results; null takes what is available "
        "less a tenth.",
        above=0.0,
        below=MAX_GB,
        on_wafer=(None,),
    )
    micro_batches: int = field(
        1,
        "Number of equal micro-batches that the wafer splits a training batch into. They run "
        "sequentially, so that activations are needed for the rows of one only. The step is that "
        "of the whole batch but for rounding and for what random operations draw: gradients and "
        "loss are those over all of its tokens, where `optimizer.grad_accum_steps` gives each of "
        "its batches the same weight. A loss that divides by a count marks it with "
        "cross_wafer_sum. Other numbers shown of a step are means over the micro-batches, where "
        "they can be.",
        minimum=1,
        on_wafer=(1,),
    )
    precision: Optional[str] = field(
        None,
        "Precision of matrix products on the wafer; null takes bfloat16 where use_cbfloat16 is "
        "set, else float32. float32 is used also for graphs in half precision. bfloat16 rounds "
        "operands and keeps sums, weights and optimizer state in float32, for processors that "
        "multiply it faster (AMX, AVX512-BF16). emulate rounds results of every operation to the "
        "graph's own type, slowly, so that overflow and loss scaling can be studied.",
        choices=("float32", "bfloat16", "emulate"),
        on_wafer=(None, "float32"),
    )
    keep_float32: tuple[str, ...] = field(
        (),
        "Regular expressions of operation names; with bfloat16, products of operations that match "
        "stay float32. Training refuses one that matches nothing.",
        check=regular_expressions,
    )
    profile: Optional[int] = field(
        None,
        "Number of training steps to profile, after the first two. Writes `profile/trace.json` in "
        "model_dir, a trace that ui.perfetto.dev opens, and logs where the time goes.",
        minimum=1,
        flag="N",
    )
    multireplica: bool = field(
        False,
        "Have several replicas of the model share the wafer and every training batch. Their "
        "gradients are averaged. In pipelined mode only. As many as are fastest are used, and "
        "their number is logged. The emulated wafer computes them together; predictions follow "
        "from it.",
        flag="",
        on_wafer=(False,),
    )
    num_threads: Optional[int] = field(
        None,
        "Number of threads that share the kernels of a wafer in this process; null takes the "
        "environment variable CEREBRAS_TF_THREADS, else one a core. The host has its own, see "
        "`tf.config.threading`.",
        minimum=1,
        below=1025,
        on_wafer=(None,),
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.memoryx_ram_gb is not None and self.memoryx_dir is None:
            yield "memoryx_ram_gb", "has no effect without memoryx_dir. Set that too."


@dataclass(frozen=True, kw_only=True)
class EstimatorOptions(SharedOptions):
    """The arguments of CSRunConfig besides those of tf.estimator.RunConfig."""

    num_csx: Optional[int] = field(  # type: ignore[assignment]
        None,
        "Number of wafers that train together, one process each, started by csrun_wse. None takes "
        "`cs_config.num_csx`; 1 takes what the launcher started.",
        minimum=1,
    )
    system_name: Optional[str] = field(None, "A name for the system. Kept, and without effect.")
    cs_config: Any = field(
        None, "A configuration message such as `cerebras.pb.tf.csconfig_pb2.CSConfig`."
    )
    stack_params: Any = field(
        None,
        'Compiler settings of the platform, `{"ir_mode": str, "config": FullConfig}`. Kept, and '
        "without effect: this compiler has none of them.",
    )
    use_vsl: Optional[bool] = field(
        None,
        "Whether padding is removed from what the wafer computes (variable sequence length). None "
        "removes it where the graph proves that no number changes; False never does. True refuses "
        "to train a model where it is not proved, predicts 0 at padded places, and also removes "
        "padding that only the weights of a causal model's loss show.",
        on_wafer=(None, False),
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.use_vsl and self.precision == "emulate":
            yield (
                "use_vsl",
                "must not be True with precision emulate, which runs the graph's own operations. "
                "Set it to False, or leave it out.",
            )
        precision = self.resolved_precision
        if self.keep_float32 and precision != "bfloat16":
            yield (
                "keep_float32",
                f"has no effect with precision {precision}. Set precision to bfloat16, or leave "
                "keep_float32 out.",
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

    mode: Optional[str] = field(None, "What the runner does.", choices=tuple(MODES))
    model_dir: Optional[str] = field(
        None,
        "Folder of checkpoints and events. A run resumes from the last checkpoint there. Null: "
        "model_dir/ and the name of the params file without params_.",
        path="as given",
        flag="DIR",
        short="-o",
    )
    max_steps: Optional[int] = field(
        None, "Global step at which training ends.", minimum=1, long=True, flag="N"
    )
    steps: Optional[int] = field(
        None, "Number of steps to train from here.", minimum=1, long=True, flag="N"
    )
    eval_steps: Optional[int] = field(
        None,
        "Batches of an evaluation; 0 or less means the whole set, as null does.",
        long=True,
        flag="N",
    )
    predict_steps: Optional[int] = field(
        None,
        "Batches of a prediction; null means all prompts, and one batch of anything else.",
        minimum=1,
    )
    save_summary_steps: int = field(100, "Steps between summaries.", minimum=1, long=True, flag="N")
    save_checkpoints_steps: int = field(
        1000, "Steps between checkpoints.", minimum=1, long=True, flag="N"
    )
    keep_checkpoint_max: int = field(
        5, "Number of checkpoints that are kept; 0 keeps all.", minimum=0
    )
    log_step_count_steps: Optional[int] = field(
        None,
        "Steps between lines on the console; null takes save_summary_steps.",
        minimum=1,
        long=True,
    )
    disable_standard_logs: bool = field(False, "Whether the lines on the console are omitted.")
    throttle_secs: int = field(
        0, "Shortest time between two evaluations of train_and_eval, in seconds.", minimum=0
    )
    tf_random_seed: Optional[int] = field(None, "TensorFlow's graph-level seed.", long=True)
    compile_dir: Optional[str] = field(
        None, "Folder for compiled programs; null takes `compiled` in model_dir.", path="as given"
    )
    device: Optional[str] = field(
        None,
        "Run the model on the host, on this TensorFlow device, such as /cpu:0.",
        check=_device_problem,
        flag="DEVICE",
    )
    checkpoint_path: Optional[str] = field(
        None,
        "Checkpoint to start from or to evaluate. Training takes its weights only.",
        path="as given",
        flag="CKPT",
    )
    resume_from: Optional[str] = field(
        None,
        "Checkpoint to go on from in a new model_dir. Training takes its step and optimizer state "
        "too.",
        path="as given",
        flag="CKPT",
    )
    keep_best_checkpoint: Any = field(
        None,
        "Which checkpoint of train_and_eval is copied to `best` in model_dir.",
        build=build_section(KeepBest),
    )
    early_stopping: Any = field(
        None, "When train_and_eval ends early.", build=build_section(EarlyStopping)
    )
    validate_only: bool = field(False, "Only check that the model compiles for the wafer.", flag="")
    compile_only: bool = field(False, "Only compile, and save the program.", flag="")
    execution_strategy: Optional[str] = field(
        None,
        "The launcher's mode, where it must be one of them. python-ws streams weights, python "
        "keeps all in place.",
        choices=("weight_streaming", "pipeline"),
    )
    disable_input_pipeline_ckpt: bool = field(
        False, "Whether training starts at the beginning of its data in every run."
    )
    use_cs_grad_accum: bool = field(
        False, "Must be False. The compiler does not choose a number of micro-batches."
    )
    enable_distributed: bool = field(False, "Must be False. It means several GPUs.")
    num_wgt_servers: Optional[int] = field(None, _OF_CLUSTER, minimum=1, of_cluster=True)
    multiple_workers: bool = field(False, _OF_CLUSTER, of_cluster=True)
    ir_mode: str = field("mlir-cirh", _OF_CLUSTER, of_cluster=True)

    def without_effect(self) -> list[str]:
        """Returns the keys of the real cluster that were given, which have no effect here."""
        return [
            each.name
            for each in dataclasses.fields(self)
            if each.metadata.get("of_cluster") and getattr(self, each.name) != each.default
        ]

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.validate_only and self.compile_only:
            yield "compile_only", "excludes validate_only. Set one of them."
        if self.checkpoint_path and self.resume_from:
            yield "resume_from", "excludes checkpoint_path. Set one of them."
        if self.device and self.cs_ip:
            yield "device", "excludes cs_ip, as the model runs on the host. Leave one out."
        if self.device and self.compile_only:
            yield "compile_only", "excludes device, as the host does not compile. Leave one out."
        if self.enable_distributed:
            yield "enable_distributed", "must be False: GPUs are not supported. Remove the key."
        if self.use_cs_grad_accum:
            yield (
                "use_cs_grad_accum",
                "must be False: the compiler does not choose micro-batches. Remove the key, or set "
                "runconfig.micro_batches to their number.",
            )


def without_none(hint: Any) -> Any:
    """Returns the type of a value that is given: `int` of `Optional[int]`."""
    kept = [option for option in typing.get_args(hint) if option is not type(None)]
    return kept[0] if typing.get_origin(hint) is typing.Union and len(kept) == 1 else hint
