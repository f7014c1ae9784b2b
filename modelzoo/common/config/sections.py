"""The YAML sections that all models share: optimizer, schedules, runconfig, csconfig, initializers.

They hold data and rules on data; what the values do is built in ``modelzoo/common/optimizers`` and
``modelzoo/common/layers``, which import TensorFlow.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from cerebras_tf.api import SPARSIFIER_MAP
from cerebras_tf.config.run_options import EarlyStopping, KeepBest, RunConfigParams
from cerebras_tf.config.schema import (
    as_number,
    as_tree,
    build_section,
    build_variant,
    convert,
    field,
    regular_expressions,
    taking,
)

# What models declare their sections with.
__all__ = [
    "EarlyStopping",
    "KeepBest",
    "RunConfigParams",
    "as_tree",
    "build_section",
    "build_variant",
    "field",
    "taking",
]

LOSS_SCALING_WORDS = ("dynamic", "tf_dynamic")
LOSS_SCALING = f"a number above 0 or one of {', '.join(LOSS_SCALING_WORDS)}"
MINIMUM_LOSS_SCALE = 2.0**-14


# ---- initializers

FAN_MODES = ("fan_in", "fan_out", "fan_avg")
DISTRIBUTIONS = ("truncated_normal", "untruncated_normal", "uniform")


@dataclass(frozen=True)
class TruncatedNormal:
    """Truncated normal distribution: values beyond two standard deviations are drawn again."""

    name: str
    mean: float = 0.0
    stddev: float = field(0.05, minimum=0.0)


@dataclass(frozen=True)
class Normal:
    """Normal distribution."""

    name: str
    mean: float = 0.0
    stddev: float = field(0.05, minimum=0.0)


@dataclass(frozen=True)
class Uniform:
    """Uniform distribution on [minval, maxval)."""

    name: str
    minval: float = -0.05
    maxval: float = 0.05


@dataclass(frozen=True)
class VarianceScaling:
    """Variance scaling, as in Keras: the variance depends on the shape of the weight."""

    name: str
    scale: float = field(1.0, minimum=0.0)
    mode: str = field("fan_in", choices=FAN_MODES)
    distribution: str = field("truncated_normal", choices=DISTRIBUTIONS)


@dataclass(frozen=True)
class Glorot:
    """Glorot initialization (Glorot and Bengio 2010), uniform or normal."""

    name: str


@dataclass(frozen=True)
class Constant:
    """A constant value."""

    name: str
    value: float = 0.0


INITIALIZERS = {
    "truncated_normal": TruncatedNormal,
    "random_normal": Normal,
    "random_uniform": Uniform,
    "variance_scaling": VarianceScaling,
    "glorot_uniform": Glorot,
    "glorot_normal": Glorot,
    "constant": Constant,
}
build_initializer = build_variant("name", INITIALIZERS)

# ---- learning rate schedules


@dataclass(frozen=True)
class ConstantRate:
    """A constant learning rate, for `steps` steps if another schedule follows."""

    scheduler: str
    learning_rate: float = field(minimum=0.0)
    steps: Optional[int] = field(None, minimum=1, long=True)


@dataclass(frozen=True)
class ExponentialRate:
    """initial * decay_rate ^ (step / decay_steps). `staircase` rounds the exponent down."""

    scheduler: str
    initial_learning_rate: float = field(minimum=0.0)
    decay_steps: int = field(minimum=1, long=True)
    decay_rate: float = field(above=0.0)
    staircase: bool = False
    steps: Optional[int] = field(None, minimum=1, long=True)


@dataclass(frozen=True)
class PiecewiseConstantRate:
    """values[i] up to and including step boundaries[i], then the last value."""

    scheduler: str
    boundaries: list[int] = field(minimum=0, long=True)
    values: list[float] = field(minimum=0.0)
    steps: Optional[int] = field(None, minimum=1, long=True)

    def problems(self):
        if len(self.values) != len(self.boundaries) + 1:
            yield (
                "values",
                f"must have {len(self.boundaries) + 1} entries, one more than boundaries.",
            )
        if list(self.boundaries) != sorted(self.boundaries):
            yield "boundaries", "must be ascending."


@dataclass(frozen=True)
class PolynomialRate:
    """Decay from the initial to the end learning rate in `steps` steps. `Linear` has power 1."""

    scheduler: str
    initial_learning_rate: float = field(minimum=0.0)
    end_learning_rate: float = field(minimum=0.0)
    steps: int = field(minimum=1, long=True)
    power: float = field(1.0, minimum=0.0)
    cycle: bool = False


@dataclass(frozen=True)
class CosineRate:
    """Cosine decay from the initial learning rate to alpha times the initial learning rate."""

    scheduler: str
    initial_learning_rate: float = field(minimum=0.0)
    decay_steps: int = field(minimum=1, long=True)
    alpha: float = field(0.0, minimum=0.0)
    steps: Optional[int] = field(
        None, "Steps until the next schedule. null: decay_steps.", minimum=1, long=True
    )


SCHEDULES = {
    "Constant": ConstantRate,
    "Exponential": ExponentialRate,
    "PiecewiseConstant": PiecewiseConstantRate,
    "Linear": PolynomialRate,
    "Polynomial": PolynomialRate,
    "Cosine": CosineRate,
}
_build_piece = build_variant("scheduler", SCHEDULES)


def piece_steps(piece):
    """Returns for how many steps a schedule's piece runs before the next, or None."""
    return piece.steps or (piece.decay_steps if isinstance(piece, CosineRate) else None)


def build_schedule(value, path, report):
    """Builds the pieces of a learning rate: from a number, a piece, or a list of pieces."""
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, (list, tuple)):
        rate = convert(float, value, path, report)
        if rate is not None and rate < 0:
            report.add(path, f"{path} must be at least 0.0.", value)
        return None if rate is None else (ConstantRate("Constant", rate),)
    if not value:
        report.add(path, f"{path} must have at least one schedule.", value)
        return None
    pieces = tuple(_build_piece(v, f"{path}[{i}]", report) for i, v in enumerate(value))
    for index, piece in enumerate(pieces[:-1]):
        if piece is not None and not piece_steps(piece):
            report.add(path, f"{path}[{index}].steps is required if another schedule follows.")
    return pieces


taking(
    build_schedule,
    words="a finite number, a section or a list of sections",
    classes=SCHEDULES,
    tag="scheduler",
)

# ---- optimizer


def build_loss_scaling_factor(value, path, report):
    """Builds a static factor, or one of the words in LOSS_SCALING_WORDS."""
    if value in LOSS_SCALING_WORDS:
        return value
    number = as_number(value)
    if 0 < number < math.inf:
        return convert(float, number, path, report)
    return report.add(path, f"{path} must be {LOSS_SCALING}.", value)


taking(build_loss_scaling_factor, words=LOSS_SCALING)


@dataclass(frozen=True)
class OptimizerParams:
    """The section ``optimizer``.

    Adam always corrects the bias of its moments. AdamW does so with `use_bias_correction`. It adds
    `epsilon` to the square root of the uncorrected second moment, or with `epsilon_mode: corrected`
    of the corrected one, as PyTorch does. `max_gradient_norm` and `max_gradient_value` of 0 disable
    clipping.
    """

    # Which kinds of optimizer have a key, of those that not all have.
    OF_KINDS: ClassVar[dict[str, tuple[str, ...]]] = {
        "momentum": ("momentum", "rmsprop"),
        "decay": ("rmsprop",),
        "beta1": ("adam", "adamw"),
        "beta2": ("adam", "adamw"),
        "epsilon": ("adam", "adamw", "rmsprop"),
        "epsilon_mode": ("adamw",),
        "use_bias_correction": ("adam", "adamw"),
        "weight_decay_rate": ("adamw",),
    }
    # The same for words of loss_scaling_factor.
    OF_SCALES: ClassVar[dict[str, tuple[str, ...]]] = {
        "initial_loss_scale": LOSS_SCALING_WORDS,
        "steps_per_increase": LOSS_SCALING_WORDS,
        **dict.fromkeys(("min_loss_scale", "max_loss_scale", "overflow_tolerance"), ("dynamic",)),
    }

    optimizer_type: str = field(choices=("sgd", "momentum", "adam", "adamw", "rmsprop"))
    learning_rate: Any = field(build=build_schedule)
    momentum: Optional[float] = field(None, "Momentum of momentum and RMSprop.", minimum=0.0)
    decay: float = field(0.9, "Decay of RMSprop's mean square.", minimum=0.0, below=1.0)
    beta1: float = field(0.9, minimum=0.0, below=1.0)
    beta2: float = field(0.999, minimum=0.0, below=1.0)
    epsilon: Optional[float] = field(None, minimum=0.0)
    epsilon_mode: str = field(
        "uncorrected", "Where AdamW adds epsilon, see above.", choices=("uncorrected", "corrected")
    )
    use_bias_correction: bool = field(False, "Whether AdamW corrects the bias of its moments.")
    weight_decay_rate: float = field(0.0, minimum=0.0)
    exclude_from_weight_decay: list[str] = field(
        ("LayerNorm", "layer_norm", "bias", "Bias"),
        "Regular expressions of variable names without weight decay.",
        check=regular_expressions,
    )
    max_gradient_norm: Optional[float] = field(
        None, "Maximum global norm of the gradients.", minimum=0.0
    )
    max_gradient_value: Optional[float] = field(
        None, "Maximum absolute value of a gradient.", minimum=0.0
    )
    grad_accum_steps: int = field(
        1, "Number of batches whose gradients are averaged in a step.", minimum=1
    )
    loss_scaling_factor: Any = field(
        1.0,
        "Loss scale: a constant, dynamic, or tf_dynamic (the rule of TensorFlow).",
        build=build_loss_scaling_factor,
    )
    initial_loss_scale: float = field(2.0**15, "Initial dynamic loss scale.", above=0.0)
    steps_per_increase: int = field(
        2000,
        "Steps without overflow until the dynamic loss scale is doubled.",
        minimum=1,
        long=True,
    )
    min_loss_scale: float = field(MINIMUM_LOSS_SCALE, minimum=MINIMUM_LOSS_SCALE)
    max_loss_scale: float = field(2.0**15, above=0.0)
    overflow_tolerance: float = field(
        0.05, "Fraction of steps that may overflow before the loss scale is halved.", minimum=0.0
    )
    log_summaries: bool = field(
        False, "Whether to write summaries of parameter norm and zero gradients."
    )
    log_grads: bool = field(False, "Whether to write the gradient norm of every variable.")
    log_hists: bool = field(False, "Whether to write histograms of gradients and weights.")
    ws_summary: bool = field(False, "The same as log_summaries.")
    disable_lr_steps_reset: bool = field(
        False, "Whether all learning rate schedules count steps from step 0, not from their start."
    )

    def problems(self):
        if self.max_gradient_norm and self.max_gradient_value:
            yield (
                "max_gradient_value",
                ("cannot be combined with max_gradient_norm. Remove one of them."),
            )
        for name, kinds in {**self.OF_KINDS, **self.OF_SCALES}.items():
            given = getattr(self, name) != type(self).__dataclass_fields__[name].default
            is_scale = name in self.OF_SCALES
            chosen = self.loss_scaling_factor if is_scale else self.optimizer_type
            if given and chosen not in kinds:
                shown = f"loss_scaling_factor {chosen}" if is_scale else chosen
                yield name, f"has no effect with {shown}. Use {' or '.join(kinds)}."
        if self.epsilon_mode == "corrected" and not self.use_bias_correction:
            yield "epsilon_mode", "requires use_bias_correction. Set it to True."
        if self.min_loss_scale > self.max_loss_scale:
            yield "min_loss_scale", f"must not exceed max_loss_scale ({self.max_loss_scale})."


# ---- sparsity, csconfig


def build_levels(value, path, report):
    """Builds the level of all weights, or levels by regular expressions of names."""
    if isinstance(value, dict) and value:
        return {str(name): build_levels(v, f"{path}.{name}", report) for name, v in value.items()}
    level = convert(float, value, path, report)
    if level is not None and not 0 <= level < 1:
        report.add(path, f"{path} must be 0 or more and less than 1.", value)
    return level


taking(build_levels, words="a number, or numbers by regular expressions of names")


@dataclass(frozen=True)
class SparsityParams:
    """The section ``sparsity``: prunes weights when training starts and keeps them at zero.

    `sparsity_level` is the fraction of entries to prune, for all weights except embeddings and
    normalization layers, or a fraction for each regular expression of weight names.
    """

    mask_type: str = field(choices=("topk", "balanced-topk", "checkerboard", "constant"))
    sparsity_level: Any = field(0.5, build=build_levels)
    sparsity_distribution: str = field("uniform", choices=("uniform", "er", "erk"))
    erk_power_scale: float = field(1.0, minimum=0.0)
    n_iter: int = field(1, minimum=1)
    seed: Optional[int] = field(None, long=True)

    def sparsifier(self):
        """Returns the sparsifier that the section describes."""
        given = dataclasses.asdict(self)
        return SPARSIFIER_MAP[given.pop("mask_type")](**given)

    def problems(self):
        if isinstance(self.sparsity_level, dict) and self.sparsity_distribution != "uniform":
            yield (
                "sparsity_level",
                (f"must be a number with sparsity_distribution {self.sparsity_distribution}."),
            )


@dataclass(frozen=True)
class CsConfigParams:
    """The section ``csconfig``."""

    use_cbfloat16: bool = False

    def problems_with(self, model):
        """Yields what does not go with the section ``model``."""
        if self.use_cbfloat16 and not model.mixed_precision:
            yield "csconfig.use_cbfloat16", "requires model.mixed_precision. Set it to True."
