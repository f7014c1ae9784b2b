"""Scores of an evaluation that are no means over batches: F1, correlation, entities, ROUGE.

A class gets the batches and the outputs of the model; see model.py. B batch, S sequence length.
"""

import numpy as np

from modelzoo.common.fine_tuning.selection import summaries
from modelzoo.common.fine_tuning.tag_labels import read_label_names, require_same_labels
from modelzoo.common.metrics import confusion, rouge
from modelzoo.common.metrics.entities import entity_counts
from modelzoo.hugging_face.chat import IGNORED


class NoScores:
    """No further scores.

    Attributes:
        extras: columns of a batch that the model does not take.
    """

    extras: tuple[str, ...] = ()

    def __init__(self, params):
        self._params, self._section = params, params.eval_input

    def add(self, batch, outputs):
        """Adds a batch: its columns and the outputs of the model, arrays by name."""

    def scores(self):
        """Returns scores by name."""
        return {}


class ClassScores(NoScores):
    """F1 and Matthews correlation of two classes; accuracies of the parts of MNLI."""

    extras = ("is_matched",)

    def __init__(self, params):
        super().__init__(params)
        size = params.model.num_labels
        self._counts = [np.zeros((size, size), np.int64) for _ in range(2)]  # mismatched, matched

    def add(self, batch, outputs):
        labels, found = batch["labels"], outputs["predictions"]
        for part, counts in enumerate(self._counts):
            chosen = batch["is_matched"].ravel() == part
            counts += confusion.count_pairs(labels[chosen], found[chosen], len(counts))

    def scores(self):
        mismatched, matched = self._counts
        counts, found = mismatched + matched, dict[str, float]()
        if self._section.has_parts:
            parts = {"accuracy_matched": matched, "accuracy_mismatched": mismatched}
            found |= {n: np.trace(c) / c.sum() if c.sum() else np.nan for n, c in parts.items()}
        if len(counts) == 2:
            found |= {"f1_score": confusion.f1_of_class(counts)[1]}
            found |= {"mcc": confusion.matthews(counts)}
        return found


class TagScores(NoScores):
    """F1 of tokens and of whole entities, with the labels of `label_vocab_file`."""

    def __init__(self, params):
        super().__init__(params)
        path, size = self._section.label_vocab_file, params.model.num_labels
        self._names = read_label_names(path) if path else []
        if self._names:
            numbers = [str(number) for number in range(size)]
            if len(self._names) != size:
                require_same_labels(path, self._names, "model.num_labels", numbers)
        self._is_tag = np.array([n.partition("-")[0] in ("B", "I", "O") for n in self._names])
        self._counts = np.zeros((size, size), np.int64)
        self._entities = np.zeros(3, np.int64)

    def add(self, batch, outputs):
        if not self._names:
            return
        for labels, found in zip(batch["labels"], outputs["predictions"]):
            kept = labels != IGNORED
            labels, found = labels[kept], found[kept]
            self._counts += confusion.count_pairs(labels, found, len(self._counts))
            tags = self._is_tag[labels]
            pair = ([self._names[number] for number in row[tags]] for row in (labels, found))
            self._entities += entity_counts(*pair)

    def scores(self):
        if not self._names:
            return {}
        wanted = [n for n, name in enumerate(self._names) if name.startswith(("B", "I"))]
        macro, micro = confusion.f1_of_classes(self._counts, wanted)
        right, predicted, true = self._entities.tolist()
        return {
            "token_level_macro_f1": macro,
            "token_level_micro_f1": micro,
            "entity_precision": right / max(predicted, 1),
            "entity_recall": right / max(true, 1),
            "entity_f1": 2 * right / max(predicted + true, 1),
        }


class SummaryScores(NoScores):
    """ROUGE of the tokens of summaries, from 0 to 1."""

    extras = ("highlight_ids",)

    def __init__(self, params):
        super().__init__(params)
        self._sums, self._count = np.zeros(len(rouge.ROUGE_FIELDS)), 0

    def add(self, batch, outputs):
        columns = [batch[n] for n in ("input_ids", "cls_indices", "cls_weights", "labels")]
        columns += [outputs["probabilities"], batch.get("highlight_ids")]
        pairs = summaries(*columns, sep_id=self._section.sep_id, top_k=self._section.top_k)
        for pair in pairs:
            scores = rouge.rouge(*pair).values()
            self._sums += [value for score in scores for value in score]
            self._count += 1

    def scores(self):
        return dict(zip(rouge.ROUGE_FIELDS, self._sums / max(self._count, 1)))


SCORES = {
    "hf_sequence_classification": ClassScores,
    "hf_token_classification": TagScores,
    "hf_extractive_summarization": SummaryScores,
}


def scores_of(params):
    """Returns what collects the further scores of a model; see NoScores."""
    return SCORES.get(params.model_name, NoScores)(params)
