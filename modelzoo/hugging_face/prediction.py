"""Predict mode: writes the files that the fine-tunings of TensorFlow write.

B batch, S sequence length, C labels or sentences.
"""

import collections
from typing import Any

import numpy as np
import torch

from modelzoo.common.data import record_files
from modelzoo.common.fine_tuning import (
    glue_predictions,
    squad_predictions,
    summary_predictions,
    tag_predictions,
    texts,
)
from modelzoo.common.fine_tuning.article_encoding import pad_article
from modelzoo.common.fine_tuning.encoding import pad_tokens, stack_rows
from modelzoo.common.fine_tuning.glue_files import PairEncoder
from modelzoo.common.train import predictions, torch_engine
from modelzoo.hugging_face.data import TOKENS, Batches, named_tokens, open_records
from modelzoo.hugging_face.model import LoadedModel, input_names


def check_prediction(params):
    """Compiles the prediction of the first batch; see torch_engine.check."""
    task, model = TASKS[params.model_name], LoadedModel(params)
    source = task.examples(params.predict_input, input_names(model.module))
    batch = Batches(source, params.predict_input, False).batch(0)
    batch = {name: tensor for name, tensor in batch.items() if name not in task.row_ids}
    torch_engine.check(params, model.module, batch, task.outputs, model.weights())


def predict(params):
    """Predicts `predict_steps` batches and writes files to ``model_dir/predict``."""
    task = TASKS[params.model_name]
    model, checkpoint = LoadedModel(params), torch_engine.chosen(params)
    section, device = params.predict_input, params.runconfig.device
    source = task.examples(section, input_names(model.module))
    batches = Batches(source, section, False)
    rows = predicted_rows(params, model, checkpoint, task, batches)
    if not torch_engine.is_first():  # takes part in the steps
        collections.deque(rows, maxlen=0)
        return
    folder = predictions.predict_folder(params)
    folder.mkdir(parents=True, exist_ok=True)
    where = "pt" if device else "cs"
    scores = task.write(section, rows, folder, lambda kind: f"{kind}_{where}_0")
    if scores is not None:
        step = torch_engine.step_of(checkpoint) if checkpoint else 0
        predictions.write_scores_of_step(folder, step, scores)


def predicted_rows(params, model, checkpoint, task, batches):
    """Yields the predictions of `predict_steps` batches: a dictionary of arrays an example."""
    start, steps = params.predict_input.skip_steps or 0, params.runconfig.predict_steps or 1
    end = min(start + steps, len(batches))
    count = max(end - start, 0)
    predictions.require_rows(count, params.predict_input)
    run = None
    with torch_engine.progress_bar(count, "batches", text="predicting") as bar:
        for number in range(start, end):
            batch = batches.batch(number)
            ids = {
                n: record_files.to_int32(batch.pop(n).numpy(), n)
                for n in task.row_ids
                if n in batch
            }
            run = run or _function(params, model, checkpoint, task.outputs, batch)
            found = {**run(batch), **ids}
            for row in range(len(next(iter(ids.values())))):
                yield {name: array[row] for name, array in found.items()}
            bar.update(1)
    if end < len(batches):
        predictions.log_skipped_batches(steps)


def _function(params, model, checkpoint, outputs, batch):
    """Returns a function of a batch: outputs by name, computed on the wafer or by PyTorch."""
    module = model.module
    if not params.runconfig.device:
        weights = model.weights(checkpoint)
        training = torch_engine.evaluation_of(params, module, batch, outputs, weights)
        return lambda batch: {name: np.array(x) for name, x in training.step(batch).items()}
    model.load(checkpoint)
    module.eval()

    def run(batch):
        with torch.no_grad():
            return {name: tensor.numpy() for name, tensor in outputs(module, batch).items()}

    return run


class EncodedTexts:
    """Texts as rows of tokens; see data.Batches.

    Args:
        examples: have ``ids`` and ``segments``.
        pad: returns an example's arrays by name, padded to a length.
        ids: arrays by name, a row for each example.
        inputs: names of the arguments of the model.
    """

    def __init__(self, examples, pad, ids, inputs):
        self._examples, self._pad, self._ids, self._inputs = examples, pad, ids, inputs

    def __len__(self):
        return len(self._examples)

    def rows(self, numbers):
        """Returns examples by their numbers."""
        chosen = [self._examples[number] for number in numbers]
        length = max(len(example.ids) for example in chosen)
        found = stack_rows([self._pad(example, length) for example in chosen])
        ids = {name: array[numbers] for name, array in self._ids.items()}
        return {**named_tokens(found, length, self._inputs), **ids}


class PairTask:
    """Sentences and pairs of tab-separated files."""

    row_ids: tuple[str, ...] = ("example_index",)
    write = staticmethod(glue_predictions.write_predictions)

    @staticmethod
    def examples(section, inputs):
        """Reads the texts of a section."""
        rows = texts.read_examples(section, "predict")
        encoder = PairEncoder(section.vocab_file, section.do_lower, section.max_sequence_length)

        def pad(example, length):
            return pad_tokens(example, length, encoder.pad_id)

        ids = {"example_index": np.arange(len(rows))}
        return EncodedTexts(encoder.encode([row.texts for row in rows]), pad, ids, inputs)

    @staticmethod
    def outputs(module, batch):
        """Returns ``label`` [B] and ``probabilities`` [B, C]."""
        logits = module(**batch).logits.float()
        return {"label": logits.argmax(-1), "probabilities": logits.softmax(-1)}


class TagTask:
    """Tagged sentences in records."""

    row_ids = ("sentence_ids", "word_ids")
    write = staticmethod(tag_predictions.write_predictions)

    @staticmethod
    def examples(section, inputs):
        """Opens the records of a section."""
        return TaggedRows(section, inputs)

    @staticmethod
    def outputs(module, batch):
        """Returns ``label_ids`` [B, S]."""
        return {"label_ids": module(**batch).logits.argmax(-1)}


class TaggedRows:
    """Records with the sentence and the words of their tokens."""

    def __init__(self, section, inputs):
        others = {"sentence_ids": (1, record_files.INTEGER)}
        self._records = open_records(section, (*TOKENS, *TagTask.row_ids), (), others)
        self._inputs, self._length = inputs, section.max_sequence_length

    def __len__(self):
        return len(self._records)

    def rows(self, numbers):
        """Returns records by their numbers, with all their tokens."""
        found = self._records.rows(numbers)
        ids = {name: found.pop(name) for name in TagTask.row_ids}
        return {**named_tokens(found, self._length, self._inputs), **ids}


class QuestionTask:
    """Questions of a file of SQuAD."""

    row_ids = ("unique_ids",)
    write = staticmethod(squad_predictions.write_predictions)

    @staticmethod
    def examples(section, inputs):
        """Reads the windows of a section."""
        windows, pad_id = texts.read_windows(section)

        def pad(example, length):
            return pad_tokens(example, length, pad_id)

        ids = {"unique_ids": np.arange(len(windows))[:, None]}
        return EncodedTexts([window for _, _, window in windows], pad, ids, inputs)

    @staticmethod
    def outputs(module, batch):
        """Returns ``start_logits`` and ``end_logits`` [B, S]."""
        found = module(**batch)
        return {"start_logits": found.start_logits.float(), "end_logits": found.end_logits.float()}


class ArticleTask:
    """Articles, of which sentences are selected."""

    row_ids = ("article_ids",)
    write = staticmethod(summary_predictions.write_predictions)

    @staticmethod
    def examples(section, inputs):
        """Reads the articles of a section that have sentences."""
        articles, pad_id = texts.read_articles(section)
        chosen = [number for number, article in enumerate(articles) if article.sentences]

        def pad(example, length):
            return pad_article(example, length, section.max_cls_tokens, pad_id)

        ids = {"article_ids": np.array(chosen)[:, None]}
        names = inputs - {"cls_weights"}
        return EncodedTexts([articles[number] for number in chosen], pad, ids, names)

    @staticmethod
    def outputs(module, batch):
        """Returns ``probabilities`` [B, C]."""
        return {"probabilities": module(**batch).float().sigmoid()}


TASKS: dict[str, Any] = {
    "hf_sequence_classification": PairTask,
    "hf_token_classification": TagTask,
    "hf_question_answering": QuestionTask,
    "hf_extractive_summarization": ArticleTask,
}
