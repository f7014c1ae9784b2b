"""The YAML schema of BERT pre-training."""

from dataclasses import dataclass
from typing import Any, Optional

from modelzoo.bert.input_sections import INHERITED_KEYS, build_bert_input
from modelzoo.common.config.base_params import INPUT_SECTIONS, BaseParams
from modelzoo.common.config.model_sections import (
    NONLINEARITIES,
    CommonModelParams,
    count_vocabulary,
)
from modelzoo.common.config.sections import field

LOSS_SCALINGS = ("precomputed_num_masked", "num_masked", "batch_size")


@dataclass(frozen=True, kw_only=True)
class BertModelParams(CommonModelParams):
    """The section ``model``, of pre-training and of every fine-tuning.

    `encoder_nonlinearity` overrides `nonlinearity`, and is the default of `mlm_nonlinearity`.
    ``gelu`` is the tanh approximation of the original zoo, ``gelu_exact`` Hugging Face's.

    `keys_begin_as_queries` gives the key projections the initial values of the query projections,
    so that tokens attend to similar tokens before training, and with fixed positions mostly to
    nearby ones.

    RoBERTa's tables begin with `position_embedding_offset` unused positions. With `num_segments` 1
    all tokens are in segment 0, and the segments of the data are ignored.
    """

    share_embedding_weights: bool = field(True, choices=(True,))
    use_position_embedding: bool = True
    position_embedding_type: str = field("learned", choices=("learned", "fixed"))
    position_embedding_offset: int = field(0, minimum=0)
    use_segment_embedding: bool = False
    num_segments: int = field(2, choices=(1, 2, 3))
    embedding_dropout_rate: Optional[float] = field(None, minimum=0.0, below=1.0)
    use_pre_normalization: bool = field(False, choices=(False,))
    attention_type: str = field("scaled_dot_product", choices=("scaled_dot_product", "dot_product"))
    keys_begin_as_queries: bool = False
    use_projection_bias_in_attention: bool = True
    use_ffn_bias_in_attention: bool = True
    use_ffn_bias: bool = True
    encoder_nonlinearity: Optional[str] = field(None, choices=NONLINEARITIES)
    disable_nsp: bool = False
    num_cls_classes: int = field(2, minimum=2)
    use_nsp_bias: bool = field(True, choices=(True,))
    nsp_nonlinearity: str = field("tanh", choices=NONLINEARITIES)
    use_ffn_bias_in_mlm: bool = field(True, choices=(True,))
    use_output_bias_in_mlm: bool = field(True, choices=(True,))
    mlm_nonlinearity: Optional[str] = field(None, choices=NONLINEARITIES)
    mlm_loss_scaling: str = field("precomputed_num_masked", choices=LOSS_SCALINGS)
    mlm_loss_weight: float = 1.0

    def problems(self):
        yield from super().problems()
        if self.position_embedding_offset and self.position_embedding_type == "fixed":
            yield "position_embedding_offset", "must be 0 with fixed positions."

    @property
    def activation(self):
        """The activation of the feed-forward layers."""
        return self.encoder_nonlinearity or self.nonlinearity


@dataclass(frozen=True, kw_only=True)
class BertParams(BaseParams):
    """The whole YAML of pre-training or of a fine-tuning."""

    @property
    def vocab_size(self):
        """Number of tokens: as given, else the lines of the vocabulary file."""
        return count_vocabulary(self.train_input)

    @property
    def max_position_embeddings(self):
        """Number of positions: the given one, else the training sequence length."""
        return self.model.max_position_embeddings or self.train_input.max_sequence_length


@dataclass(frozen=True, kw_only=True)
class Params(BertParams):
    """The whole YAML of BERT pre-training."""

    model: BertModelParams
    train_input: Any = field(build=build_bert_input)
    eval_input: Any = field(None, build=build_bert_input)
    predict_input: Any = field(None, build=build_bert_input)

    INHERITED_KEYS = INHERITED_KEYS

    @classmethod
    def with_defaults(cls, tree):
        """Returns `tree` with the keys that its sections inherit.

        `scale_mlm_weights` of input sections depends on model.mlm_loss_scaling.
        """
        tree = super().with_defaults(tree)
        model = tree.get("model")
        if isinstance(model, dict):
            scaling = model.get("mlm_loss_scaling", LOSS_SCALINGS[0])
            for name in INPUT_SECTIONS:
                if isinstance(tree.get(name), dict):
                    scale = {"scale_mlm_weights": scaling == LOSS_SCALINGS[0]}
                    tree[name] = {**scale, **tree[name]}
        return tree

    def problems(self):
        yield from super().problems()
        for name, section in self.inputs():
            for key, text in self._input_problems(section):
                yield f"{name}.{key}", text

    def _input_problems(self, section):
        if section.max_sequence_length > self.max_position_embeddings:
            text = f"must not exceed the {self.max_position_embeddings} positions of the model."
            yield "max_sequence_length", text
        if not (section.has_next_sentence or self.model.disable_nsp):
            yield "data_processor", "has no next sentence labels. Set model.disable_nsp to True."
        expected = self.vocab_size
        if count_vocabulary(section) != expected:
            yield "vocab_size", f"must equal train_input.vocab_size ({expected})."
