"""The whole YAML of a model: the sections that all have, and the keys that inputs inherit.

Like every params.py it imports no TensorFlow, so that a mistake in a YAML is reported at once.
The `Params` of a model::

    @dataclass(frozen=True, kw_only=True)
    class Params(BaseParams):
        model: XModelParams
        train_input: Any = field(build=build_x_input)
        eval_input: Any = field(None, build=build_x_input)
        predict_input: Any = field(None, build=build_x_input)

        INHERITED_KEYS = ("data_processor", "max_sequence_length", "batch_size")
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cerebras_tf.api import job
from cerebras_tf.config.schema import build_section
from modelzoo.common.config.sections import (
    CsConfigParams,
    OptimizerParams,
    RunConfigParams,
    SparsityParams,
    field,
)

INPUT_SECTIONS = ("train_input", "eval_input", "predict_input")
SHAPE_KEYS = ("vocab_size", "vocab_file", "max_sequence_length", "batch_size")
MAX_TOKENS = 2**31  # in a batch
IN_ORDER_ONCE = {"shuffle": False, "repeat": False}


@dataclass(frozen=True, kw_only=True)
class BaseParams:
    """The sections that the YAML of every model has.

    INHERITED_KEYS are the keys that evaluation and prediction inherit from training by default.
    PREDICTS_EVAL_INPUT is whether prediction reads `eval_input` where the YAML has no section
    `predict_input`. ADVICE is what to add for a section that a mode needs.
    """

    model_name: str
    model: Any
    train_input: Any
    optimizer: OptimizerParams
    runconfig: RunConfigParams
    eval_input: Any = None
    predict_input: Any = None
    csconfig: CsConfigParams = CsConfigParams()
    sparsity: Any = field(None, build=build_section(SparsityParams))

    INHERITED_KEYS: ClassVar[tuple[str, ...]] = ()
    PREDICTS_EVAL_INPUT: ClassVar[bool] = True
    ADVICE: ClassVar[Mapping[str, str]] = {
        "eval_input": "`eval_input: {data_dir: FOLDER}` inherits other keys from train_input.",
        "predict_input": "It inherits missing keys from eval_input.",
    }

    @classmethod
    def with_defaults(cls, tree):
        """Returns `tree` with the keys that its sections inherit."""
        return inherit_inputs(tree, cls.INHERITED_KEYS, cls.PREDICTS_EVAL_INPUT)

    def problems(self):
        yield from self.csconfig.problems_with(self.model)
        if self.sparsity and self.runconfig.device:
            yield "sparsity", "works only on the wafer. Remove runconfig.device."
        precision = self.runconfig.precision or "bfloat16"
        if self.csconfig.use_cbfloat16 and precision != "bfloat16":
            yield (
                "csconfig.use_cbfloat16",
                (f"cannot be combined with precision {precision}. Remove one of them."),
            )
        wafers = job.wafers()
        if self.runconfig.num_csx > 1 and self.runconfig.num_csx % wafers:
            yield (
                "runconfig.num_csx",
                f"must be a multiple of the {wafers} processes of this job. Received: "
                f"{self.runconfig.num_csx}. Give csrun_wse --num_csx {self.runconfig.num_csx}.",
            )
        parts = self.runconfig.micro_batches
        if parts > 1 and self.batches_per_step > 1:
            yield (
                "runconfig.micro_batches",
                "cannot be combined with several batches per step (num_csx, "
                "optimizer.grad_accum_steps). Lower train_input.batch_size and increase "
                "optimizer.grad_accum_steps instead.",
            )
        if self.train_input.batch_size % parts:
            yield (
                "runconfig.micro_batches",
                f"must divide train_input.batch_size, {self.train_input.batch_size}. Received: "
                f"{parts}. Set a divisor.",
            )
        if getattr(self.eval_input, "repeat", False):
            yield (
                "eval_input.repeat",
                ("must be False, because an evaluation reads every example once."),
            )
        training, evaluation = self.train_input, self.eval_input
        fractions = [getattr(each, "eval_fraction", 0) for each in (training, evaluation)]
        folders = [getattr(each, "data_dir", None) for each in (training, evaluation)]
        if any(fractions) and are_disjoint(*folders):
            yield (
                "train_input.eval_fraction",
                "must be 0 if eval_input has its own data_dir. Received: "
                f"{max(fractions)}. Set it to 0, so that both are read completely.",
            )
        for name, section in self.inputs():
            length = getattr(section, "max_sequence_length", None) or 0
            if length * section.batch_size >= MAX_TOKENS:
                yield (
                    f"{name}.max_sequence_length",
                    f"times batch_size must be below {MAX_TOKENS}. Received: {length} x "
                    f"{section.batch_size}. Lower one of them.",
                )

    @property
    def batches_per_step(self):
        """Batches of a step: those of `num_csx` wafers, or of as many as the launcher started."""
        return self.optimizer.grad_accum_steps * max(self.runconfig.num_csx, job.wafers())

    @property
    def batches_per_process(self):
        """Batches of a step that this process computes sequentially."""
        return self.batches_per_step // job.wafers()

    @property
    def global_batch_size(self):
        """Examples of a step, of all its batches."""
        return self.train_input.batch_size * self.batches_per_step

    @property
    def label_count(self):
        """Number of labels in the data; None if the model has none."""
        return None

    def with_checkpoint(self, path):
        """Returns the parameters for a checkpoint; None for the latest of model_dir.

        The `checkpoint_path` of a params.yaml in a model folder is what training started from.
        """
        runconfig = dataclasses.replace(self.runconfig, checkpoint_path=path, resume_from=None)
        return dataclasses.replace(self, runconfig=runconfig)

    def inputs(self):
        """Yields name and section of every input section that is given."""
        for name in INPUT_SECTIONS:
            section = getattr(self, name)
            if section is not None:
                yield name, section


def inherit_inputs(tree, keys, predicts_eval_input=True):
    """Returns `tree` with the keys that its input sections inherit.

    Evaluation inherits `keys` from training, and prediction every key of evaluation; where the data
    processor is another, only SHAPE_KEYS.

    Args:
        predicts_eval_input: whether `tree` gets a predict_input that it lacks.
    """
    tree = dict(tree)
    tree.setdefault("runconfig", {})
    if isinstance(tree.get("train_input"), dict):
        tree["train_input"] = dict(tree["train_input"])
    train, evaluation = tree.get("train_input"), tree.get("eval_input")
    if isinstance(train, dict) and isinstance(evaluation, dict):
        keys = keys if _same_processor(train, evaluation) else SHAPE_KEYS
        inherited = {key: train[key] for key in keys if key in train}
        tree["eval_input"] = evaluation = {**inherited, **IN_ORDER_ONCE, **evaluation}
        if _same_processor(train, evaluation) and "TextData" in str(train.get("data_processor")):
            _share_text(train, evaluation)
    prediction = tree.get("predict_input")
    if prediction is None and predicts_eval_input:
        prediction = {}
    if isinstance(evaluation, dict) and isinstance(prediction, dict):
        inherited = evaluation
        if not _same_processor(evaluation, prediction):
            shapes = {key: evaluation[key] for key in SHAPE_KEYS if key in evaluation}
            inherited = {**shapes, **IN_ORDER_ONCE}
        tree["predict_input"] = {**inherited, **prediction}
    return tree


def _share_text(train, evaluation):
    """Lets evaluation read its fraction of the text of training, or all of other text."""
    if evaluation.get("data_dir") is None:
        evaluation["data_dir"] = train.get("data_dir")
    if are_disjoint(train.get("data_dir"), evaluation["data_dir"]):
        train.setdefault("eval_fraction", 0.0)
        evaluation.setdefault("eval_fraction", 0.0)


def are_disjoint(first, second):
    """Returns whether two values of `data_dir` have no path in common."""
    lists = [value if isinstance(value, (list, tuple)) else [value] for value in (first, second)]
    sets = [{path for path in paths if isinstance(path, str)} for paths in lists]
    return all(sets) and sets[0].isdisjoint(sets[1])


def _same_processor(section, other):
    return other.get("data_processor") in (None, section.get("data_processor"))
