"""The data processor of token classification: TFRecords of preparation.py.

Besides the features of all fine-tunings there are in prediction ``sentence_ids`` [B, 1] and
``word_ids`` [B, S] int32. Labels are [B, S] int32.
"""

from pathlib import Path

from modelzoo.bert.fine_tuning.data import TOKENS, FineTuningProcessor
from modelzoo.common.data import record_files
from modelzoo.common.data.prepared import MANIFEST, read_facts
from modelzoo.common.fine_tuning.tag_labels import read_label_names, require_same_labels


class NerDataProcessor(FineTuningProcessor):
    """Reads records of tagged sentences; the section is an NerInput.

    Prediction keeps whole rows, and also reads which word a token begins.
    """

    token_columns = (*TOKENS, "label_ids")

    def layout(self, predicting=False):
        length = self.section.max_sequence_length
        layout = record_files.integers(self.token_columns, length)
        if predicting:
            layout["word_ids"] = (length, record_files.INTEGER)
            layout["sentence_ids"] = (1, record_files.INTEGER)
        return layout

    def split(self, batch):
        labels = batch.pop("label_ids")
        return batch, labels

    def create_dataset(self, training, skip, predicting=False):
        """Returns the batches; see FineTuningProcessor."""
        dataset = super().create_dataset(training, skip, predicting)
        # Prediction reads no labels. Its records may have fewer than the model.
        if predicting:
            read_label_names(self.section.label_vocab_file)
        else:
            check_label_names(self.section)
        return dataset


def check_label_names(section):
    """Compares a section's label_vocab_file with the manifests of its records, if there are any.

    Returns the labels in the order of their numbers.
    """
    names = read_label_names(section.label_vocab_file)
    for folder in [section.data_dir] if isinstance(section.data_dir, str) else section.data_dir:
        facts = read_facts(folder)
        if facts is not None and facts.labels is not None:
            require_same_labels(
                section.label_vocab_file, names, Path(folder, MANIFEST), facts.labels
            )
    return names
