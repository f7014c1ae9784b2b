"""The YAML schema of GPT-2 and GPT-3: which keys exist, their types, defaults and rules.

It deliberately imports no TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Union

from modelzoo.common.schema import build_variant
from modelzoo.common.sections import (
    CsConfigParams,
    OptimizerParams,
    RunConfigParams,
    build_initializer,
    field,
)

BYTE_VOCAB_SIZE = 257  # 256 byte values and the end-of-document token


@dataclass(frozen=True)
class GptModelParams:
    """The section ``model``."""

    hidden_size: int = field(minimum=1)
    num_hidden_layers: int = field(minimum=1)
    num_heads: int = field(minimum=1)
    filter_size: int = field(minimum=1)
    use_position_embedding: bool = True
    position_embedding_type: str = field("learned", choices=("learned", "fixed"))
    max_position_embeddings: Optional[int] = None
    embedding_size: Optional[int] = None
    share_embedding_weights: bool = True
    nonlinearity: str = field("gelu", choices=("gelu", "relu", "tanh"))
    dropout_rate: float = field(0.0, minimum=0.0)
    embedding_dropout_rate: Optional[float] = field(None, minimum=0.0)
    attention_dropout_rate: float = field(0.0, minimum=0.0)
    dropout_seed: Optional[int] = None
    layer_norm_epsilon: float = field(1.0e-8, minimum=0.0)
    use_pre_normalization: bool = True
    attention_type: str = field("scaled_dot_product", choices=("scaled_dot_product", "dot_product"))
    attention_softmax_fp32: bool = True
    use_projection_bias_in_attention: bool = True
    use_ffn_bias_in_attention: bool = True
    use_ffn_bias: bool = True
    use_bias_in_output: bool = field(False, choices=(False,))
    fixed_sparse_attention: None = None
    initializer: Any = field(None, build=build_initializer)
    embedding_initializer: Any = field(None, build=build_initializer)
    output_layer_initializer: Any = field(None, build=build_initializer)
    weight_initialization_seed: Optional[int] = None
    loss_scaling: str = field("num_tokens", choices=("num_tokens", "batch_size"))
    loss_weight: float = 1.0
    mixed_precision: bool = False
    boundary_casting: bool = field(False, choices=(False,))
    tf_summary: bool = False
    precision_opt_level: int = field(0, choices=(0, 1, 2))

    def problems(self):
        """Yields what is wrong between the fields."""
        if self.hidden_size % self.num_heads:
            yield "num_heads", f"must divide hidden_size ({self.hidden_size})."
        if self.embedding_size not in (None, self.hidden_size) and self.share_embedding_weights:
            yield "embedding_size", "must equal hidden_size where the embedding is shared."


@dataclass(frozen=True)
class GptTfRecordsInput:
    """An input section with ``data_processor: GptTfRecordsProcessor``."""

    data_processor: str
    data_dir: Union[str, list[str]] = field(path=True)
    vocab_size: int = field(minimum=1)
    max_sequence_length: int = field(minimum=1)
    batch_size: int = field(minimum=1)
    shuffle: bool = True
    shuffle_seed: Optional[int] = 0
    shuffle_buffer: Optional[int] = field(None, minimum=1)
    repeat: bool = True
    n_parallel_reads: int = field(4, minimum=1)
    use_multiple_workers: bool = False
    skip_steps: Optional[int] = field(None, minimum=0)


@dataclass(frozen=True)
class GptTextDataInput:
    """An input section with ``data_processor: GptTextDataProcessor``.

    `data_dir` is a folder, a file, a glob or a list of them; null reads the sources of the Python
    standard library. In folders, files that match one of `file_patterns` are read. The share
    `eval_fraction` of the files, chosen by a hash of their path in the folder, is kept for
    evaluation.
    """

    data_processor: str
    max_sequence_length: int = field(minimum=2)
    batch_size: int = field(minimum=1)
    data_dir: Union[str, list[str], None] = field(None, path=True)
    file_patterns: list[str] = field(("*.txt", "*.md", "*.rst", "*.py"))
    eval_fraction: float = field(0.05, minimum=0.0)
    vocab_size: int = field(BYTE_VOCAB_SIZE, minimum=BYTE_VOCAB_SIZE)
    shuffle: bool = True
    shuffle_seed: Optional[int] = 0
    repeat: bool = True
    skip_steps: Optional[int] = field(None, minimum=0)

    def problems(self):
        """Yields what is wrong between the fields."""
        if self.eval_fraction >= 1:
            yield "eval_fraction", "must be below 1, or nothing is left to train on."


build_input = build_variant(
    "data_processor",
    {"GptTfRecordsProcessor": GptTfRecordsInput, "GptTextDataProcessor": GptTextDataInput},
)
# What evaluation and prediction read as training does, unless told otherwise.
INHERITED_KEYS = (
    "data_processor",
    "vocab_size",
    "max_sequence_length",
    "batch_size",
    "file_patterns",
    "eval_fraction",
)


SHAPE_KEYS = ("vocab_size", "max_sequence_length", "batch_size")
IN_ORDER_ONCE = {"shuffle": False, "repeat": False}


def _same_processor(section, other):
    return other.get("data_processor") in (None, section.get("data_processor"))


@dataclass(frozen=True)
class Params:
    """The whole YAML of a GPT-2 or GPT-3 model."""

    model_name: str
    model: GptModelParams
    train_input: Any = field(build=build_input)
    optimizer: OptimizerParams = field()
    runconfig: RunConfigParams = field()
    eval_input: Any = field(None, build=build_input)
    predict_input: Any = field(None, build=build_input)
    csconfig: CsConfigParams = CsConfigParams()

    @classmethod
    def with_defaults(cls, tree):
        """Returns `tree` with what its sections take over from one another.

        Evaluation takes the shapes of training, prediction every key of evaluation; where the
        data processor is another, only what all of them know.
        """
        tree = dict(tree)
        tree.setdefault("runconfig", {})
        train, evaluation = tree.get("train_input"), tree.get("eval_input")
        if isinstance(train, dict) and isinstance(evaluation, dict):
            keys = INHERITED_KEYS if _same_processor(train, evaluation) else SHAPE_KEYS
            inherited = {key: train[key] for key in keys if key in train}
            tree["eval_input"] = evaluation = {**inherited, **IN_ORDER_ONCE, **evaluation}
        prediction = tree.get("predict_input") or {}
        if isinstance(evaluation, dict) and isinstance(prediction, dict):
            inherited = evaluation
            if not _same_processor(evaluation, prediction):
                shapes = {key: evaluation[key] for key in SHAPE_KEYS if key in evaluation}
                inherited = {**shapes, **IN_ORDER_ONCE}
            tree["predict_input"] = {**inherited, **prediction}
        return tree

    def problems(self):
        """Yields what is wrong between the sections."""
        if self.csconfig.use_cbfloat16 and not self.model.mixed_precision:
            yield "csconfig.use_cbfloat16", "needs model.mixed_precision. Set that to True."
        longest = self.model.max_position_embeddings or self.train_input.max_sequence_length
        for name in ("train_input", "eval_input", "predict_input"):
            section = getattr(self, name)
            if section is None:
                continue
            if section.max_sequence_length > longest:
                yield (
                    f"{name}.max_sequence_length",
                    f"must not exceed the {longest} positions of the model.",
                )
            if section.vocab_size != self.train_input.vocab_size:
                yield (
                    f"{name}.vocab_size",
                    f"must equal train_input.vocab_size ({self.train_input.vocab_size}).",
                )

    @property
    def max_position_embeddings(self):
        """Number of learned positions: the given one, else the training sequence length."""
        return self.model.max_position_embeddings or self.train_input.max_sequence_length
