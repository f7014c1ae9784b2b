"""Makes the TFRecords of sentence classification from GLUE's tab-separated files.

For example, from train.tsv and dev.tsv of SST-2::

    cerebras-tf prepare glue --data_dir sst2 --task Sst2DataProcessor \\
        --vocab_file vocab.txt --max_seq_length 72 --output_dir sst2_msl72

It only reads its arguments; ``modelzoo/bert/fine_tuning/classifier/preparation.py``
does the work. Small sets need no records: Sst2DataProcessor and MnliDataProcessor read the files
as they are. A run that was stopped goes on when the same command is given again.
"""

from __future__ import annotations

import functools

from cerebras_tf.cli.arguments import positive_int
from modelzoo.bert.fine_tuning.classifier.glue_files import TASKS, find_files
from modelzoo.bert.fine_tuning.classifier.preparation import Settings, prepare
from modelzoo.common.data.preparation import command

USES = ("train", "eval")


def add_arguments(parser):
    """Adds the command's arguments."""
    command.add_arguments(parser)
    add = parser.add_argument
    add("--data_dir", required=True, help="folder of train.tsv and dev.tsv (or dev_matched.tsv)")
    add("--data_split_type", choices=["all", *USES], default="all", help="what to make")
    add("--task", choices=list(TASKS), required=True, help="whose columns and labels they have")
    add("--text_columns", nargs="+", help="one column of text, or two")
    add("--label_column", help="column of the label")
    add("--labels", nargs="+", help="all labels, in the order of their numbers")
    add("--vocab_file", required=True, help="vocab.txt of a BERT")
    add("--no_lower_case", dest="do_lower_case", action="store_false", help="keep case and accents")
    add("--max_seq_length", type=positive_int, default=128, help="tokens of a record")


def run(args):
    """Runs the preparation."""
    output_dir, processes, others = command.split_options(args)
    data_dir, wanted = others.pop("data_dir"), others.pop("data_split_type")
    others = {key: tuple(v) if isinstance(v, list) else v for key, v in others.items()}
    settings = Settings(**others)
    for use in USES if wanted == "all" else [wanted]:
        find_files(data_dir, use, command.tell)  # a part that is missing is told once
        make = functools.partial(prepare, data_dir, use, output_dir, settings, processes)
        command.run(make, [data_dir], f"{output_dir}/{use}", unit="rows")
