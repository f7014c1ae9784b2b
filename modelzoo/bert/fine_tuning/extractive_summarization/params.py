"""The YAML schema of extractive summarization."""

from dataclasses import dataclass
from typing import Any, Optional

from modelzoo.bert.fine_tuning.sections import (
    FineTuningInputKeys,
    FineTuningModelParams,
    FineTuningParams,
)
from modelzoo.common.config.model_sections import RecordInput
from modelzoo.common.config.sections import build_variant, field
from modelzoo.common.fine_tuning.article_encoding import EncodingSettings
from modelzoo.common.fine_tuning.encoding import settings_of


@dataclass(frozen=True, kw_only=True)
class SummarizationModelParams(FineTuningModelParams):
    """The section ``model``.

    The loss is the sum over sentences, multiplied by `loss_weight` and divided by the batch size.
    """

    loss_weight: float = 0.0625


@dataclass(frozen=True, kw_only=True)
class BertSumInput(FineTuningInputKeys, RecordInput):
    """An input section with ``data_processor: BertSumTfRecordsProcessor``.

    Training and evaluation read TFRecords of cerebras-tf prepare bertsum, or with
    `original_records` those of the original zoo. These have a mask that is 1 for padding, and no
    highlights, so evaluation compares with the labelled sentences instead. A summary consists of
    the `top_k` most probable sentences, or with null of all sentences with a probability of at
    least 0.5.

    Prediction reads articles from `predict_file` (.jsonl, .story or .bin) and splits them in the
    same way as cerebras-tf prepare bertsum, with the other keys as its options.
    """

    max_cls_tokens: int = field(50, minimum=1)
    max_highlight_tokens: int = field(192, minimum=1)
    original_records: bool = False
    top_k: Optional[int] = field(None, minimum=1)
    sep_id: int = field(102, minimum=0)
    predict_file: Optional[str] = field(None, path=True)
    do_lower_case: bool = False
    max_sentences_per_sequence: int = field(100, minimum=1)
    min_tokens_per_sentence: int = field(5, minimum=1)
    max_tokens_per_sentence: int = field(200, minimum=1)

    @property
    def encoding(self):
        """How prediction encodes articles."""
        return settings_of(EncodingSettings, self)


build_input = build_variant("data_processor", {"BertSumTfRecordsProcessor": BertSumInput})


@dataclass(frozen=True, kw_only=True)
class Params(FineTuningParams):
    """The whole YAML of extractive summarization."""

    model: SummarizationModelParams
    train_input: Any = field(build=build_input)
    eval_input: Any = field(None, build=build_input)
    predict_input: Any = field(None, build=build_input)

    INHERITED_KEYS = (
        *FineTuningParams.INHERITED_KEYS,
        "max_cls_tokens",
        "max_highlight_tokens",
        "original_records",
        "sep_id",
        "do_lower_case",
        "max_sentences_per_sequence",
        "min_tokens_per_sentence",
        "max_tokens_per_sentence",
    )
