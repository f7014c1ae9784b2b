"""The YAML schema of sentence classification."""

from dataclasses import dataclass
from typing import Any, Optional

from modelzoo.bert.fine_tuning.sections import (
    FineTuningInputKeys,
    FineTuningModelParams,
    FineTuningParams,
)
from modelzoo.common.config.model_sections import RecordInput
from modelzoo.common.config.sections import build_variant, field
from modelzoo.common.fine_tuning.glue_files import OTHER_FILES, TASKS


@dataclass(frozen=True, kw_only=True)
class ClassifierModelParams(FineTuningModelParams):
    """The section ``model``. `num_cls_classes` is the number of classes of the task."""

    cls_dropout_rate: float = field(0.0, minimum=0.0, below=1.0)


@dataclass(frozen=True, kw_only=True)
class ClassifierInput(FineTuningInputKeys, RecordInput):
    """An input section that reads tab-separated files.

    `data_dir` is a folder with the files of GLUE (train.tsv, dev.tsv, test.tsv), a file, or a list
    of files. The data processor determines columns and labels. With TsvDataProcessor, set
    `text_columns` (one or two), `label_column` and `labels` (in the order of their class indices).
    """

    do_lower: bool = True
    text_columns: Optional[list[str]] = None
    label_column: Optional[str] = None
    labels: Optional[list[str]] = None

    def problems(self):
        yield from super().problems()
        own = {key: getattr(self, key) for key in ("text_columns", "label_column", "labels")}
        if self.data_processor not in TASKS:
            for key, value in own.items():
                if value is None:
                    yield key, f"is required with {self.data_processor}. Set it as in the files."
        for name, fault in self.task.faults(self.max_sequence_length):
            yield {"length": "max_sequence_length"}.get(name, name), fault
        if self.vocab_file is None:
            yield "vocab_file", "is required. Set it to the vocab.txt of the model."

    @property
    def task(self):
        """The processor's task, with the columns and labels that the section gives."""
        return TASKS.get(self.data_processor, OTHER_FILES).with_overrides(
            self.text_columns, self.label_column, self.labels
        )


@dataclass(frozen=True, kw_only=True)
class GlueRecordsInput(FineTuningInputKeys, RecordInput):
    """An input section with ``data_processor: GlueTfRecordsProcessor``.

    It reads TFRecords of cerebras-tf prepare glue. `has_parts` evaluates the matched and the
    mismatched set of MNLI separately.
    """

    has_parts: bool = False


RECORDS_PROCESSOR = "GlueTfRecordsProcessor"
TSV_PROCESSORS = (*TASKS, "TsvDataProcessor")
build_input = build_variant(
    "data_processor",
    {**dict.fromkeys(TSV_PROCESSORS, ClassifierInput), RECORDS_PROCESSOR: GlueRecordsInput},
)
# Prediction reads files without labels, of which there are no records.
build_predict_input = build_variant(
    "data_processor", dict.fromkeys(TSV_PROCESSORS, ClassifierInput)
)


@dataclass(frozen=True, kw_only=True)
class Params(FineTuningParams):
    """The whole YAML of a classifier."""

    model: ClassifierModelParams
    train_input: Any = field(build=build_input)
    eval_input: Any = field(None, build=build_input)
    predict_input: Any = field(None, build=build_predict_input)

    INHERITED_KEYS = (
        *FineTuningParams.INHERITED_KEYS,
        "do_lower",
        "text_columns",
        "label_column",
        "labels",
        "has_parts",
    )

    @classmethod
    def with_defaults(cls, tree):
        """Returns `tree` with the keys that input sections inherit."""
        own = tree.get("predict_input")
        tree = super().with_defaults(tree)
        given = None if own else tree.get("predict_input")
        records = isinstance(given, dict) and given.get("data_processor") == RECORDS_PROCESSOR
        return {k: v for k, v in tree.items() if k != "predict_input"} if records else tree

    @property
    def label_count(self):
        """Number of labels in the data."""
        return self.model.num_cls_classes

    def problems(self):
        yield from super().problems()
        for name, section in self.inputs():
            if not isinstance(section, ClassifierInput):
                continue
            labels = section.task.labels
            if len(labels) != self.model.num_cls_classes:
                text = f"must be {len(labels)}, the labels of {name}: {', '.join(labels)}."
                yield "model.num_cls_classes", text
                return
