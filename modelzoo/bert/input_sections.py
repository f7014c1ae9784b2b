"""The input sections of BERT pre-training.

S is max_sequence_length, P max_predictions_per_seq.
"""

from dataclasses import dataclass
from typing import Optional, Union

from modelzoo.common.config.input_sections import TextFileKeys
from modelzoo.common.config.model_sections import (
    RecordInput,
    SequenceInput,
    StreamKeys,
    count_lines,
    count_vocabulary,
)
from modelzoo.common.config.sections import build_variant, field

BYTE_VOCAB_SIZE = 260  # 256 byte values after [PAD], [CLS], [SEP] and [MASK]


@dataclass(frozen=True, kw_only=True)
class VocabularyKeys:
    """The size of the vocabulary, or a file with one token in each line, or both."""

    vocab_size: Optional[int] = field(
        None, "Number of tokens. null: the lines of vocab_file.", minimum=1
    )
    vocab_file: Optional[str] = field(None, "File with one token per line.", path=True)

    def problems(self):
        lines = count_lines(self.vocab_file)
        if self.vocab_size is None and lines is None:
            yield (
                "vocab_size",
                "is required without a readable vocab_file. `cerebras-tf prepare vocab "
                "--algorithm wordpiece` writes such a file.",
            )
        elif self.vocab_size is not None and lines not in (None, self.vocab_size):
            yield "vocab_size", f"must equal the {lines} lines of {self.vocab_file}."


@dataclass(frozen=True, kw_only=True)
class MaskedLmKeys:
    """Keys of every input section of masked language modelling.

    `buckets` batches examples of similar lengths together: the lower bounds of all buckets but the
    first, or the number of buckets. `scale_mlm_weights` multiplies the weights of a batch's masked
    tokens by batch size / sum of weights. The pad ids replace padding; None keeps that of the
    records (or 0).
    """

    max_predictions_per_seq: int = field(20, "Maximum number of masked tokens.", minimum=1)
    buckets: Union[int, list[int], None] = field(
        None, "Lower bounds of length buckets except the first, or their number."
    )
    scale_mlm_weights: bool = field(
        True, "Whether to scale the weights of masked tokens to a sum of the batch size."
    )
    input_pad_id: Optional[int] = field(
        None, "Token id of padding. null: as in the records.", minimum=0
    )
    segment_pad_id: Optional[int] = field(
        None, "Segment of padding. null: as in the records.", choices=(0, 1)
    )
    mlm_pad_id: Optional[int] = field(
        None, "Label of unused predictions. null: as in the records.", minimum=0
    )


@dataclass(frozen=True, kw_only=True)
class DrawnMaskKeys:
    """Keys of input sections with random masks, which are a function of the shuffle_seed."""

    masked_lm_prob: float = field(0.15, "Fraction of tokens that are masked.", minimum=0.0)
    mask_whole_word: bool = field(False, "Whether to mask all tokens of a word together.")

    def problems(self):
        if not 0 < self.masked_lm_prob < 1:
            yield "masked_lm_prob", "must be between 0 and 1."


@dataclass(frozen=True)
class BertTfRecordsInput(MaskedLmKeys, StreamKeys, VocabularyKeys, RecordInput):
    """An input section with ``data_processor: BertTfRecordsProcessor``."""

    has_next_sentence = True

    def problems(self):
        yield from VocabularyKeys.problems(self)
        buckets = self.buckets
        if isinstance(buckets, int) and buckets < 1:
            yield "buckets", "must be at least 1, or a list of lengths."
        if isinstance(buckets, tuple):
            inside = all(1 <= bound <= self.max_sequence_length for bound in buckets)
            if not inside or list(buckets) != sorted(set(buckets)):
                yield "buckets", "must be ascending and at most max_sequence_length."
        if self.max_predictions_per_seq > self.max_sequence_length:
            yield "max_predictions_per_seq", "must not exceed max_sequence_length."
        vocab_size = count_vocabulary(self)
        for key in ("input_pad_id", "mlm_pad_id"):
            if vocab_size is not None and (getattr(self, key) or 0) >= vocab_size:
                yield key, f"must be a token of the vocabulary, below {vocab_size}."


@dataclass(frozen=True)
class BertMlmOnlyTfRecordsStaticMaskInput(BertTfRecordsInput):
    """An input section with ``data_processor: BertMlmOnlyTfRecordsStaticMaskProcessor``."""

    has_next_sentence = False


@dataclass(frozen=True)
class BertMlmOnlyTfRecordsDynamicMaskInput(DrawnMaskKeys, BertTfRecordsInput):
    """An input section with ``data_processor: BertMlmOnlyTfRecordsDynamicMaskProcessor``.

    `do_lower` lower-cases tokens before they are looked up in `vocab_file`.
    """

    do_lower: bool = False
    has_next_sentence = False

    def problems(self):
        yield from BertTfRecordsInput.problems(self)
        yield from DrawnMaskKeys.problems(self)
        if self.vocab_file is None:
            yield "vocab_file", "is required, because the records contain tokens and not ids."


@dataclass(frozen=True, kw_only=True)
class BertTextDataInput(TextFileKeys, DrawnMaskKeys, SequenceInput):
    """An input section with ``data_processor: BertTextDataProcessor``."""

    max_sequence_length: int = field(minimum=4)
    max_predictions_per_seq: int = field(20, minimum=1)
    vocab_size: int = field(BYTE_VOCAB_SIZE, choices=(BYTE_VOCAB_SIZE,))
    scale_mlm_weights: bool = True
    has_next_sentence = False

    def problems(self):
        yield from DrawnMaskKeys.problems(self)
        yield from TextFileKeys.problems(self)
        if self.max_predictions_per_seq > self.max_sequence_length:
            yield "max_predictions_per_seq", "must not exceed max_sequence_length."


build_bert_input = build_variant(
    "data_processor",
    {
        "BertTfRecordsProcessor": BertTfRecordsInput,
        "BertMlmOnlyTfRecordsStaticMaskProcessor": BertMlmOnlyTfRecordsStaticMaskInput,
        "BertMlmOnlyTfRecordsDynamicMaskProcessor": BertMlmOnlyTfRecordsDynamicMaskInput,
        "BertTextDataProcessor": BertTextDataInput,
    },
)
# Keys that evaluation and prediction inherit from training.
INHERITED_KEYS = (
    "data_processor",
    "vocab_size",
    "vocab_file",
    "do_lower",
    "max_sequence_length",
    "max_predictions_per_seq",
    "batch_size",
    "masked_lm_prob",
    "mask_whole_word",
    "file_patterns",
    "eval_fraction",
    "text_key",
    "cache_dir",
)
