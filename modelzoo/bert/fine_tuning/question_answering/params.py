"""The YAML schema of question answering."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Optional, Union

from modelzoo.bert.fine_tuning.sections import (
    FineTuningInputKeys,
    FineTuningModelParams,
    FineTuningParams,
)
from modelzoo.common.config.model_sections import SequenceInput
from modelzoo.common.config.sections import build_variant, field
from modelzoo.common.fine_tuning.encoding import settings_of
from modelzoo.common.fine_tuning.question_encoding import EncodingSettings


@dataclass(frozen=True)
class QuestionAnsweringInput(FineTuningInputKeys, SequenceInput):
    """An input section with ``data_processor: QuestionAnsweringDataProcessor``.

    Training and evaluation read TFRecords of cerebras-tf prepare squad: all files in `data_dir`, or
    only `data_file`. Prediction reads `predict_file`, a JSON file of SQuAD; `articles: [FIRST,
    END]` selects articles, counted from 0, without END. It splits paragraphs into windows in the
    same way as cerebras-tf prepare squad, with `do_lower_case`, `doc_stride` and
    `max_query_length`, and writes the `n_best_size` best answers of at most `max_answer_length`
    tokens. With `version_2_with_negative` the answer is empty if the score of the empty answer
    minus that of the best answer exceeds `null_score_diff_threshold`. `answer_by` selects the most
    probable answer, or the one with the largest expected F1, which is better if a model is unsure
    between overlapping answers. `mark_question_words` puts tokens of the paragraph that also occur
    in the question into segment 2. It requires `num_segments: 3` in the section ``model``.
    """

    max_sequence_length: int = field(minimum=8)
    _: KW_ONLY
    data_dir: Union[str, list[str], None] = field(None, path=True)
    data_file: Optional[str] = field(None, path=True)
    predict_file: Optional[str] = field(None, path=True)
    articles: Optional[list[int]] = None
    do_lower_case: bool = False
    mark_question_words: bool = False
    doc_stride: int = field(128, minimum=1)
    max_query_length: int = field(64, minimum=1)
    n_best_size: int = field(20, minimum=1)
    max_answer_length: int = field(30, minimum=1)
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0
    answer_by: str = field("probability", choices=("probability", "expected_f1"))

    def problems(self):
        yield from super().problems()
        if (self.data_dir is None) == (self.data_file is None):
            yield "data_dir", "or data_file must be set, but not both."
        first, last = (*(self.articles or ()), 0, 1)[:2]
        if (self.articles is not None and len(self.articles) != 2) or not 0 <= first < last:
            yield "articles", "must be two ascending numbers, such as [0, 10]."

    @property
    def encoding(self):
        """How prediction makes windows."""
        return settings_of(EncodingSettings, self, max_seq_length=self.max_sequence_length)


build_input = build_variant(
    "data_processor", {"QuestionAnsweringDataProcessor": QuestionAnsweringInput}
)


@dataclass(frozen=True, kw_only=True)
class Params(FineTuningParams):
    """The whole YAML of question answering."""

    model: FineTuningModelParams
    train_input: Any = field(build=build_input)
    eval_input: Any = field(None, build=build_input)
    predict_input: Any = field(None, build=build_input)

    INHERITED_KEYS = (
        *FineTuningParams.INHERITED_KEYS,
        "do_lower_case",
        "doc_stride",
        "max_query_length",
        "version_2_with_negative",
        "mark_question_words",
    )

    def problems(self):
        yield from super().problems()
        model, marked = self.model, self.train_input.mark_question_words
        if marked and not (model.use_segment_embedding and model.num_segments == 3):
            yield (
                "train_input.mark_question_words",
                "requires model.use_segment_embedding: True and num_segments: 3.",
            )
        for name, section in self.inputs():
            if section.mark_question_words != marked:
                yield (
                    f"{name}.mark_question_words",
                    (f"must be equal to that of train_input ({marked})."),
                )
