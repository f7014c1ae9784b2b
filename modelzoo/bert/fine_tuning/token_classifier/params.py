"""The YAML schema of token classification."""

from dataclasses import dataclass
from typing import Any, Optional

from modelzoo.bert.fine_tuning.sections import (
    FineTuningInputKeys,
    FineTuningModelParams,
    FineTuningParams,
)
from modelzoo.common.config.model_sections import RecordInput
from modelzoo.common.config.sections import build_variant, field


@dataclass(frozen=True, kw_only=True)
class TokenClassifierModelParams(FineTuningModelParams):
    """The section ``model``.

    `num_classes` is the number of labels in label2id.json. With `include_padding_in_loss` the loss
    is the mean over all positions. Otherwise it is the sum over tokens, multiplied by `loss_weight`
    and divided by the batch size.
    """

    num_classes: Optional[int] = field(None, minimum=2)
    encoder_output_dropout_rate: float = field(0.1, minimum=0.0, below=1.0)
    include_padding_in_loss: bool = False
    loss_weight: float = 1.0

    def problems(self):
        yield from super().problems()
        if self.num_classes is None:
            yield "num_classes", "is required. Set it to the number of labels in label_vocab_file."


@dataclass(frozen=True, kw_only=True)
class NerInput(FineTuningInputKeys, RecordInput):
    """An input section with ``data_processor: NerDataProcessor``.

    It reads TFRecords and `label_vocab_file` (label2id.json) of cerebras-tf prepare ner. If
    `text_file` is the .tsv file that the records of prediction were made from, prediction also
    writes its words with their tags.
    """

    label_vocab_file: Optional[str] = field(None, path=True)
    text_file: Optional[str] = field(None, path=True)

    def problems(self):
        yield from super().problems()
        if self.label_vocab_file is None:
            yield "label_vocab_file", "is required. Set it to the label2id.json of the records."
        folders = [] if isinstance(self.data_dir, str) else self.data_dir or []
        if self.text_file is not None and len(folders) > 1:
            yield (
                "data_dir",
                "must be one folder, with the records of text_file. Remove the other folders, or "
                "text_file.",
            )


build_input = build_variant("data_processor", {"NerDataProcessor": NerInput})


@dataclass(frozen=True, kw_only=True)
class Params(FineTuningParams):
    """The whole YAML of a token classifier."""

    model: TokenClassifierModelParams
    train_input: Any = field(build=build_input)
    eval_input: Any = field(None, build=build_input)
    predict_input: Any = field(None, build=build_input)

    INHERITED_KEYS = (*FineTuningParams.INHERITED_KEYS, "label_vocab_file")
