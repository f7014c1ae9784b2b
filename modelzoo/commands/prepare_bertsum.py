"""Makes the TFRecords of extractive summarization (BERTSUM) from CNN/DailyMail.

For example::

    cerebras-tf prepare bertsum --input_dir cnn_dm/train.jsonl \\
        --vocab_file vocab.txt --do_lower_case --output_dir cnn_dm_bertsum_msl512/train

Labels are chosen greedily by ROUGE-1 and ROUGE-2 against the highlights. It only reads
its arguments; ``modelzoo/bert/fine_tuning/extractive_summarization/preparation.py`` does the work.
A run that was stopped goes on when the command is given again.
"""

from __future__ import annotations

import functools
import os

from cerebras_tf.cli.arguments import positive_int
from modelzoo.bert.fine_tuning.extractive_summarization.encoding import EncodingSettings
from modelzoo.bert.fine_tuning.extractive_summarization.preparation import prepare
from modelzoo.common.data.preparation import cnn_dailymail, command, input_files


def add_arguments(parser):
    """Adds the command's arguments."""
    command.add_arguments(parser)
    add = parser.add_argument
    inputs = f"files, or folders of them: {', '.join(cnn_dailymail.SUFFIXES)}"
    add("--input_dir", nargs="+", required=True, help=inputs)
    add("--vocab_file", required=True, help="vocab.txt of a BERT")
    add("--do_lower_case", action="store_true", help="lower case, without accents")
    limits = {
        "max_sequence_length": "tokens of a record",
        "max_cls_tokens": "sentences of a record, at most",
        "min_sentences_per_sequence": "leave out articles with fewer sentences",
        "max_sentences_per_sequence": "leave out the sentences after these",
        "min_tokens_per_sentence": "leave out sentences with fewer tokens",
        "max_tokens_per_sentence": "cut sentences with more",
        "max_highlight_tokens": "tokens kept of the highlights, for evaluation",
    }
    for name, text in limits.items():
        default = getattr(EncodingSettings, name)
        add(f"--{name}", type=positive_int, default=default, help=text)


def run(args):
    """Runs the preparation."""
    output_dir, processes, others = command.split_options(args)
    inputs = others.pop("input_dir")
    files = input_files.find_inputs(inputs, cnn_dailymail.SUFFIXES, command.tell)
    command.run(
        functools.partial(prepare, inputs, output_dir, EncodingSettings(**others), processes),
        inputs,
        output_dir,
        sum(map(os.path.getsize, files)),
        remedy=remedy,
    )


def remedy(counts):
    """Returns what to do where every article was left out."""
    if counts["skipped_without_label"] >= counts["skipped_too_short"]:
        return "Give highlights that share words with sentences of their articles."
    return "Lower --min_sentences_per_sequence or --min_tokens_per_sentence."
