"""Batches of the input sections as tensors. B batch, S sequence length, C sentences.

A batch is a function of its number, so that a run continues anywhere in its data.
"""

import numpy as np
import torch

from cerebras_tf.errors import DataError
from modelzoo.common.data import hdf5_files, record_files, text_files
from modelzoo.common.data.batches import EpochOrder
from modelzoo.common.data.prepared import check_prepared, check_tokens
from modelzoo.common.files.folders import refuse_repeated
from modelzoo.common.files.split_names import files_of_split
from modelzoo.common.train.console import logger
from modelzoo.hugging_face import chat

TOKENS = ("input_ids", "input_mask", "segment_ids")
POSITIONS = "position_ids"
SCALARS = ("label", "is_matched", "start_positions", "end_positions")


class Batches:
    """The batches of an input section: dictionaries of tensors.

    In training, an iteration continues after the last batch and ends with its epoch; see
    `cerebras_tf.torch.fit` for `state_dict`. Otherwise every iteration has all batches.

    Args:
        training: whether the last examples of an epoch that fill no batch are left out.
        start: number of the first batch.
    """

    def __init__(self, source, section, training, start=0):
        self._source, self._number, self._continues = source, start, training
        seed = (section.shuffle_seed or 0) if section.shuffle and training else None
        self._order = EpochOrder(len(source), section.batch_size, seed, not training)
        self.batches_per_epoch = self._order.batches_per_epoch
        if not self.batches_per_epoch:
            raise DataError(
                f"data_dir: must contain at least {section.batch_size} examples, one batch. "
                f"Received: {len(source)}. Add data, or lower batch_size."
            )

    def batch(self, number):
        """Returns a batch by its number."""
        found = self._source.rows(self._order.examples_of(number))
        return {
            name: torch.from_numpy(array if array.dtype.kind == "f" else array.astype(np.int64))
            for name, array in found.items()
        }

    def __iter__(self):
        if not self._continues:
            yield from map(self.batch, range(self.batches_per_epoch))
            return
        end = (self._number // self.batches_per_epoch + 1) * self.batches_per_epoch
        while self._number < end:
            self._number += 1
            yield self.batch(self._number - 1)

    def __len__(self):
        return self.batches_per_epoch

    def state_dict(self):
        """Returns the position after the last batch."""
        return {"number": self._number}

    def load_state_dict(self, state):
        """Continues at a position."""
        self._number = state["number"]


def make_batches(section, training, inputs=None, start=0):
    """Reads the data of an input section.

    Args:
        inputs: names of the arguments of the model's forward; others are left out.

    Returns:
        Batches. Those of a language model have ``input_ids`` and ``labels`` [B, S], the next
        tokens, and with several documents in a row ``position_ids``. Those of a fine-tuning have
        ``input_ids``, ``attention_mask`` and ``token_type_ids`` [B, S] and labels.
    """
    return Batches(
        SOURCES[section.data_processor](section, training, inputs), section, training, start
    )


class TextRows:
    """Windows of text; see text_files."""

    def __init__(self, section, training, inputs=None):
        self._length = section.max_sequence_length
        self._tokens = text_files.read_text(section, training).tokens
        if not len(self):
            raise DataError(
                f"data_dir: must contain at least {self._length + 1} tokens, one window. Received: "
                f"{len(self._tokens)}. Add text, or lower max_sequence_length."
            )

    def __len__(self):
        return (len(self._tokens) - 1) // self._length

    def rows(self, numbers):
        """Returns windows by their numbers."""
        places = numbers[:, None] * self._length + np.arange(self._length + 1)
        tokens = self._tokens[places].astype(np.int64)
        return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}


class TokenRows:
    """Records of a language model; a record with ``position_ids`` has several documents."""

    def __init__(self, section, training, inputs=None):
        self._records = open_records(section, hdf5_files.COLUMNS, (POSITIONS,))

    def __len__(self):
        return len(self._records)

    def rows(self, numbers):
        """Returns records by their numbers."""
        found = self._records.rows(numbers)
        mask = found.pop("input_mask")
        return {**found, "labels": np.where(mask, found["labels"], chat.IGNORED)}


class Hdf5Rows(TokenRows):
    """Records of a language model in HDF5 files."""

    def __init__(self, section, training, inputs=None):
        folders, length = hdf5_files.as_folders(section.data_dir), section.max_sequence_length
        check_prepared(folders, {"vocab_size": section.vocab_size}, length)
        self._records = _NamedColumns(hdf5_files.Hdf5Records(section.data_dir, length))
        if len(self._records):
            first = self._records.rows([0])["input_ids"][0].tolist()
            check_tokens(folders[0], first, section.vocab_size)


class _NamedColumns:
    def __init__(self, records):
        self._records = records

    def __len__(self):
        return len(self._records)

    def rows(self, numbers):
        data = self._records.rows(numbers)
        return {name: data[:, at] for at, name in enumerate(hdf5_files.COLUMNS)}


class ChatRows:
    """Conversations, one or several in a row."""

    def __init__(self, section, training, inputs=None):
        template = chat.read_template(section.chat_template)
        encoder = chat.ChatEncoder(chat.load_tokenizer(section.tokenizer), template)
        self._size, self._packs = section.max_sequence_length, section.packing
        files = [(path.name, path) for path in chat.find_chat_files(section.data_dir)]
        refuse_repeated(path for _, path in files)
        files = files_of_split(files, training, logger().info) or files
        self._examples = chat.read_examples(encoder, [path for _, path in files], self._size)
        self._pad_id = encoder.pad_id
        lengths = [len(example.ids) for example in self._examples]
        self._rows = (
            chat.pack(lengths, self._size) if self._packs else [[n] for n in range(len(lengths))]
        )

    def __len__(self):
        return len(self._rows)

    def rows(self, numbers):
        """Returns rows by their numbers."""
        chosen = [[self._examples[n] for n in self._rows[number]] for number in numbers]
        size = self._size if self._packs else max(len(row[0].ids) for row in chosen)
        rows = [chat.packed_row(row, size, self._pad_id) for row in chosen]
        names = rows[0] if self._packs else ("input_ids", "labels")
        return {name: np.stack([row[name] for row in rows]) for name in names}


class FineTuningRows:
    """Records of a fine-tuning of BERT, cropped to the longest example of a batch."""

    columns: dict[str, str] = {}  # names of the model's arguments, by those of the records
    scored: tuple[str, ...] = ()  # columns that only scores of an evaluation need

    def __init__(self, section, training, inputs=None):
        self._inputs = inputs
        scored = () if training else self.scored
        names = (*TOKENS, *self.columns)
        self._records = open_records(section, names, scored, self.lengths(section))

    def lengths(self, section):
        """Returns how many values of which kind a feature has, where not one for each token."""
        return {name: (1, record_files.INTEGER) for name in self.columns if name in SCALARS}

    def __len__(self):
        return len(self._records)

    def rows(self, numbers):
        """Returns records by their numbers."""
        found = self._records.rows(numbers)
        mask = found["input_mask"]
        if not np.isin(mask, (0, 1)).all():
            raise DataError(
                f"input_mask: must contain 0 and 1 alone. Received: {mask.min()} to {mask.max()}. "
                "Make the records again."
            )
        longest = max(1, int(mask.sum(axis=1).max()))
        found = {self.columns.get(name, name): array for name, array in found.items()}
        named = named_tokens(found, longest, None)
        self.change(named, longest)
        return {k: v for k, v in named.items() if self._inputs is None or k in self._inputs}

    def change(self, named, longest):
        """Changes the labels of a batch."""
        for name, array in named.items():
            if array.shape[1:] == (1,) and name in self.columns.values():
                named[name] = array[:, 0]


class ClassificationRows(FineTuningRows):
    """Sentences and pairs, with ``labels`` [B]."""

    columns = {"label": "labels"}
    scored = ("is_matched",)

    def lengths(self, section):
        """Returns how many values of which kind a feature has."""
        return {**super().lengths(section), "is_matched": (1, record_files.INTEGER)}


class TokenRowsOfLabels(FineTuningRows):
    """Tagged sentences, with ``labels`` [B, S]; padding has no label."""

    columns = {"label_ids": "labels"}

    def change(self, named, longest):
        """Changes the labels of a batch."""
        labels = named["labels"][:, :longest]
        named["labels"] = np.where(named["attention_mask"], labels, chat.IGNORED)


class QuestionRows(FineTuningRows):
    """Questions with paragraphs, with ``start_positions`` and ``end_positions`` [B]."""

    columns = {"start_positions": "start_positions", "end_positions": "end_positions"}


class SentenceRows(FineTuningRows):
    """Articles, with ``cls_indices``, ``labels`` and ``cls_weights`` [B, C]."""

    columns = {"cls_indices": "cls_indices", "labels": "labels", "cls_weights": "cls_weights"}
    scored = ("highlight_ids",)

    def lengths(self, section):
        """Returns how many values of which kind a feature has."""
        count = section.max_cls_tokens
        integer, real = record_files.INTEGER, record_files.FLOAT
        return {
            "cls_indices": (count, integer),
            "labels": (count, integer),
            "cls_weights": (count, real),
            "highlight_ids": (section.max_highlight_tokens, integer),
        }


def named_tokens(found, length, inputs):
    """Returns columns by the names of a model's arguments, and tokens up to a length.

    Args:
        found: arrays by name, ``input_mask`` [B, S] among them, 1 for a token.
        inputs: names that are kept; None for all.
    """
    found = dict(found)
    tokens = [found.pop(name)[:, :length] for name in TOKENS]
    named = {**dict(zip(("input_ids", "attention_mask", "token_type_ids"), tokens)), **found}
    return {name: x for name, x in named.items() if inputs is None or name in inputs}


def open_records(section, names, optional, others=()):
    """Opens and checks the TFRecords of an input section.

    Args:
        names: features of all records.
        optional: those that records may have besides.
        others: lengths and kinds of features that have not a number for each token.
    """
    files = record_files.find_record_files(section.data_dir)
    record_files.check_section(section, files)
    first = record_files.features_of(files[0])
    names = [*names, *(name for name in optional if name in first)]
    layout = record_files.integers(names, section.max_sequence_length)
    layout |= {name: kind for name, kind in dict(others).items() if name in names}
    record_files.check_files(files, layout, section.batch_size, section.vocab_size)
    return record_files.Records(files, layout)


SOURCES = {
    "GptTextDataProcessor": TextRows,
    "GptTfRecordsProcessor": TokenRows,
    "GptHDF5DataProcessor": Hdf5Rows,
    "ChatDataProcessor": ChatRows,
    "GlueTfRecordsProcessor": ClassificationRows,
    "NerDataProcessor": TokenRowsOfLabels,
    "QuestionAnsweringDataProcessor": QuestionRows,
    "BertSumTfRecordsProcessor": SentenceRows,
}
