"""What the sections ``model`` and ``*_input`` of all transformers share, and how inputs inherit.

It deliberately imports no TensorFlow. A model's own dataclass names its bases as
``class XModelParams(CommonModelParams, TransformerSizes)``: then required keys come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Union

from modelzoo.common.sections import build_initializer, field

NONLINEARITIES = ("gelu", "gelu_exact", "relu", "tanh")


@dataclass(frozen=True)
class TransformerSizes:
    """The keys that make a transformer large or small."""

    hidden_size: int = field(minimum=1)
    num_hidden_layers: int = field(minimum=1)
    num_heads: int = field(minimum=1)
    filter_size: int = field(minimum=1)

    def problems(self):
        """Yields what is wrong between the fields."""
        if self.hidden_size % self.num_heads:
            yield "num_heads", f"must divide hidden_size ({self.hidden_size})."


@dataclass(frozen=True)
class CommonModelParams:
    """Keys that every transformer has, all with a default."""

    max_position_embeddings: Optional[int] = field(None, minimum=1)
    embedding_size: Optional[int] = field(None, minimum=1)
    share_embedding_weights: bool = True
    nonlinearity: str = field("gelu", choices=NONLINEARITIES)
    dropout_rate: float = field(0.0, minimum=0.0)
    attention_dropout_rate: float = field(0.0, minimum=0.0)
    dropout_seed: Optional[int] = None
    layer_norm_epsilon: float = field(1.0e-8, minimum=0.0)
    attention_softmax_fp32: bool = True
    initializer: Any = field(None, build=build_initializer)
    embedding_initializer: Any = field(None, build=build_initializer)
    weight_initialization_seed: Optional[int] = None
    mixed_precision: bool = False
    boundary_casting: bool = field(False, choices=(False,))
    tf_summary: bool = False
    precision_opt_level: int = field(0, choices=(0, 1, 2))


@dataclass(frozen=True)
class RecordInput:
    """The keys of every input section that reads TFRecords of a folder."""

    data_processor: str
    data_dir: Union[str, list[str]] = field(path=True)
    max_sequence_length: int = field(minimum=1)
    batch_size: int = field(minimum=1)


@dataclass(frozen=True)
class StreamKeys:
    """How records are ordered, repeated and read; all with a default."""

    shuffle: bool = True
    shuffle_seed: Optional[int] = 0
    shuffle_buffer: Optional[int] = field(None, minimum=1)
    repeat: bool = True
    n_parallel_reads: int = field(4, minimum=1)
    use_multiple_workers: bool = False
    skip_steps: Optional[int] = field(None, minimum=0)


SHAPE_KEYS = ("vocab_size", "vocab_file", "max_sequence_length", "batch_size")
IN_ORDER_ONCE = {"shuffle": False, "repeat": False}


def inherit_inputs(tree, keys):
    """Returns `tree` with what its input sections take over from one another.

    Evaluation takes over what `keys` name from training, prediction every key of evaluation;
    where the data processor is another, only SHAPE_KEYS.

    Args:
        tree: nested dictionary of a YAML.
        keys: keys of an input section that mean the same in evaluation.
    """
    tree = dict(tree)
    tree.setdefault("runconfig", {})
    train, evaluation = tree.get("train_input"), tree.get("eval_input")
    if isinstance(train, dict) and isinstance(evaluation, dict):
        keys = keys if _same_processor(train, evaluation) else SHAPE_KEYS
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


def _same_processor(section, other):
    return other.get("data_processor") in (None, section.get("data_processor"))
