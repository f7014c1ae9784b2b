"""The YAML schema of GPT-J and GPT-NeoX."""

import math
from dataclasses import dataclass
from typing import Any, Optional

from modelzoo.common.config.input_sections import LanguageModelParams, length_problems
from modelzoo.common.config.model_sections import CommonModelParams
from modelzoo.common.config.sections import (
    DISTRIBUTIONS,
    FAN_MODES,
    INITIALIZERS,
    Normal,
    TruncatedNormal,
    VarianceScaling,
    build_variant,
    field,
    taking,
)

# Biases and norms have no weight decay. The default patterns do not match ln_1 and ln_2.
EXCLUDE_FROM_WEIGHT_DECAY = ("LayerNorm", "layer_norm", "bias", "Bias", "ln_1", "ln_2")


@dataclass(frozen=True)
class ScaledNormal:
    """Normal distribution with the standard deviation sigma / sqrt(n).

    n is the vocabulary size, or twice the number of layers, as `key` says. Without `key` it is 1.
    """

    name: str
    key: Optional[str] = field(None, choices=("num_hidden_layers", "vocab_size"))
    mean: float = 0.0
    sigma: float = field(1.0, minimum=0.0)
    distribution: str = field("truncated_normal", choices=("truncated_normal", "normal"))

    def of_sizes(self, layers, vocab_size):
        """Returns the distribution for a number of layers and of tokens."""
        count = {None: 1, "num_hidden_layers": 2 * layers, "vocab_size": vocab_size}[self.key]
        cls = Normal if self.distribution == "normal" else TruncatedNormal
        return cls(self.distribution, self.mean, self.sigma / math.sqrt(count))


@dataclass(frozen=True)
class DepthScaling:
    """Variance scaling with a given `scale` (1 by default), or one that `scale_type` names.

    ``small_init`` is 2 / 5 (Nguyen and Salazar 2019, section 2.2), which is for matrices of
    hidden_size rows. ``wang_init`` is 4 / L^2 with L layers (Black et al. 2022, section 2.1.3).
    """

    name: str
    scale: Optional[float] = field(None, minimum=0.0)
    mode: str = field("fan_in", choices=FAN_MODES)
    distribution: str = field("truncated_normal", choices=DISTRIBUTIONS)
    scale_type: Optional[str] = field(None, choices=("small_init", "wang_init"))

    def problems(self):
        if self.scale is not None and self.scale_type is not None:
            yield "scale", "cannot be combined with scale_type. Remove one of them."

    def of_sizes(self, layers, vocab_size):
        """Returns the distribution for a number of layers and of tokens."""
        named = {None: self.scale, "small_init": 2 / 5, "wang_init": 4 / layers**2}
        scale = named[self.scale_type]
        return VarianceScaling(
            self.name, 1.0 if scale is None else scale, self.mode, self.distribution
        )


GPTJ_INITIALIZERS = {
    **INITIALIZERS,
    "variance_scaling": DepthScaling,
    "scaled_init_normal": ScaledNormal,
}
build_initializer = build_variant("name", GPTJ_INITIALIZERS)


def build_listed_initializer(value, path, report):
    """Builds an initializer from a section, or from a list of one section."""
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    return build_initializer(value, path, report)


taking(
    build_listed_initializer,
    words="a section or a list of one section",
    classes=GPTJ_INITIALIZERS,
    tag="name",
)


@dataclass(frozen=True, kw_only=True)
class GptjModelParams(CommonModelParams):
    """The section ``model``.

    `rotary_dim` is the number of features of each head that are rotated; null rotates all. Pair j
    is rotated by rotary_emb_base^(-2j / rotary_dim) per position. Attention and feed-forward run in
    parallel (`use_parallel_residual`) or sequentially. `dropout_rate` applies if
    `embedding_dropout_rate` or `residual_dropout_rate` is null.
    """

    initializer: Any = field(None, build=build_listed_initializer)
    embedding_initializer: Any = field(None, build=build_listed_initializer)
    output_layer_initializer: Any = field(None, build=build_listed_initializer)
    rotary_dim: Optional[int] = field(None, minimum=2)
    rotary_emb_base: float = 10_000.0
    use_untied_layer_norm: bool = False
    use_parallel_residual: bool = True
    use_projection_bias_in_attention: bool = False
    use_ffn_bias_in_attention: bool = False
    use_ffn_bias: bool = True
    use_bias_in_output: bool = True
    embedding_dropout_rate: Optional[float] = field(None, minimum=0.0, below=1.0)
    residual_dropout_rate: Optional[float] = field(None, minimum=0.0, below=1.0)

    def problems(self):
        yield from super().problems()
        if self.head_size % 2:
            yield (
                "num_heads",
                (f"must divide hidden_size into heads of even size, not {self.head_size}."),
            )
        if self.rotary_dim is not None and (
            self.rotary_dim % 2 or self.rotary_dim > self.head_size
        ):
            yield "rotary_dim", f"must be even and at most the head size ({self.head_size})."
        if self.rotary_emb_base <= 0:
            yield "rotary_emb_base", "must be above 0."
        if not (self.use_parallel_residual or self.use_untied_layer_norm):
            text = "is required if use_parallel_residual is False. Set it to True."
            yield "use_untied_layer_norm", text
        if self.embedding_size not in (None, self.hidden_size):
            yield "embedding_size", f"must equal hidden_size ({self.hidden_size})."

    def initializer_of(self, key, vocab_size):
        """Returns the initializer that `key` sets, for the sizes of the model; None by default."""
        settings = getattr(self, key)
        if isinstance(settings, (ScaledNormal, DepthScaling)):
            return settings.of_sizes(self.num_hidden_layers, vocab_size)
        return settings

    @property
    def head_size(self):
        """Features of a head."""
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, kw_only=True)
class Params(LanguageModelParams):
    """The whole YAML of a GPT-J or GPT-NeoX model."""

    model: GptjModelParams

    @classmethod
    def with_defaults(cls, tree):
        """Returns `tree` with the keys that its sections inherit."""
        tree = super().with_defaults(tree)
        if isinstance(tree.get("optimizer"), dict):
            excluded = {"exclude_from_weight_decay": list(EXCLUDE_FROM_WEIGHT_DECAY)}
            tree["optimizer"] = {**excluded, **tree["optimizer"]}
        return tree

    def problems(self):
        yield from super().problems()
        yield from length_problems(self, self.model.max_position_embeddings)
