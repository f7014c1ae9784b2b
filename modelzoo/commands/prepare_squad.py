"""Makes the TFRecords of question answering from the json files of SQuAD 1.1 or 2.0.

For example::

    cerebras-tf prepare squad --input_file train-v1.1.json --vocab_file vocab.txt \\
        --do_lower_case --output_dir squad_msl384/train

It only reads its arguments; ``modelzoo/bert/fine_tuning/question_answering/
preparation.py`` does the work. A run that was stopped goes on when the command is given again.
Questions whose answer does not stand where the file says are named on stderr and left out.
"""

from __future__ import annotations

import argparse
import functools

from cerebras_tf.cli.arguments import positive_int
from modelzoo.bert.fine_tuning.question_answering.preparation import Settings, prepare
from modelzoo.common.data.preparation import command


def article_range(text):
    """Reads two numbers with a colon between."""
    first, _, last = text.partition(":")
    if not (first.isdigit() and last.isdigit() and int(first) < int(last)):
        raise argparse.ArgumentTypeError("must be two ascending numbers, such as 0:10")
    return int(first), int(last)


def add_arguments(parser):
    """Adds the command's arguments."""
    command.add_arguments(parser)
    add = parser.add_argument
    add("--input_file", required=True, help="SQuAD json with answers")
    add("--vocab_file", required=True, help="vocab.txt of a BERT")
    add("--do_lower_case", action="store_true", help="lower case, without accents")
    add("--max_seq_length", type=positive_int, default=384, help="tokens of a record")
    stride = "tokens of a long paragraph between the beginnings of two records"
    add("--doc_stride", type=positive_int, default=128, help=stride)
    add("--max_query_length", type=positive_int, default=64, help="tokens of a question")
    negative = "keep questions without an answer (2.0)"
    add("--version_2_with_negative", action="store_true", help=negative)
    few = "FIRST:END, take only these articles, counted from 0"
    add("--articles", type=article_range, help=few)


def run(args):
    """Runs the preparation."""
    output_dir, processes, others = command.split_options(args)
    input_file, articles = others.pop("input_file"), others.pop("articles")
    make = functools.partial(
        prepare, input_file, output_dir, Settings(**others), processes, articles=articles
    )
    command.run(
        make, [input_file], output_dir, unit="questions", remedy="Give a file with answers."
    )
