"""The YAML schema of GPT-2 and GPT-3."""

from dataclasses import dataclass
from typing import Any, Optional

from modelzoo.common.config.input_sections import LanguageModelParams, length_problems
from modelzoo.common.config.model_sections import CommonModelParams
from modelzoo.common.config.sections import build_initializer, field


@dataclass(frozen=True, kw_only=True)
class GptModelParams(CommonModelParams):
    """The section ``model``.

    `scale_attn_by_inverse_layer_idx` divides the attention scores of layer i by i + 1, counted from
    0.
    """

    use_position_embedding: bool = True
    position_embedding_type: str = field("learned", choices=("learned", "fixed"))
    embedding_dropout_rate: Optional[float] = field(None, minimum=0.0, below=1.0)
    use_pre_normalization: bool = True
    attention_type: str = field("scaled_dot_product", choices=("scaled_dot_product", "dot_product"))
    scale_attn_by_inverse_layer_idx: bool = False
    use_projection_bias_in_attention: bool = True
    use_ffn_bias_in_attention: bool = True
    use_ffn_bias: bool = True
    use_bias_in_output: bool = field(False, choices=(False,))
    fixed_sparse_attention: None = None
    output_layer_initializer: Any = field(None, build=build_initializer)
    loss_scaling: str = field("num_tokens", choices=("num_tokens", "batch_size"))
    loss_weight: float = 1.0

    def problems(self):
        yield from super().problems()
        if self.embedding_size not in (None, self.hidden_size) and self.share_embedding_weights:
            yield "embedding_size", "must equal hidden_size if share_embedding_weights is True."


@dataclass(frozen=True, kw_only=True)
class Params(LanguageModelParams):
    """The whole YAML of a GPT-2 or GPT-3 model."""

    model: GptModelParams

    def problems(self):
        yield from super().problems()
        yield from length_problems(self, self.max_position_embeddings)

    @property
    def max_position_embeddings(self):
        """Number of learned positions: the given one, else the training sequence length."""
        return self.model.max_position_embeddings or self.train_input.max_sequence_length
