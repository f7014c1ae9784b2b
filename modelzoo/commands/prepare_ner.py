"""Makes the TFRecords and label2id.json of token classification from BLURB or CoNLL files.

For example, from train.tsv, devel.tsv and test.tsv of the NCBI Disease corpus::

    cerebras-tf prepare ner --data_dir ncbi-disease --vocab_file vocab.txt \\
        --do_lower_case --output_dir ncbi_disease_msl128

It only reads its arguments; ``modelzoo/bert/fine_tuning/token_classifier/
preparation.py`` does the work. A run that was stopped goes on when the command is given again.
"""

from __future__ import annotations

import functools

from cerebras_tf.cli.arguments import positive_int
from modelzoo.bert.fine_tuning.token_classifier.preparation import (
    SPLITS,
    Settings,
    find_splits,
    prepare,
)
from modelzoo.common.data.preparation import command


def add_arguments(parser):
    """Adds the command's arguments."""
    command.add_arguments(parser)
    add = parser.add_argument
    add("--data_dir", required=True, help="folder of train.tsv, devel.tsv and test.tsv")
    add("--data_split_type", choices=["all", *SPLITS], default="all", help="what to make")
    add("--vocab_file", required=True, help="vocab.txt of a BERT")
    add("--do_lower_case", action="store_true", help="lower case, without accents")
    add("--max_seq_length", type=positive_int, default=128, help="tokens of a record")


def run(args):
    """Runs the preparation."""
    output_dir, processes, others = command.split_options(args)
    data_dir, wanted = others.pop("data_dir"), others.pop("data_split_type")
    splits = list(find_splits(data_dir)) if wanted == "all" else [wanted]
    for split, names in SPLITS.items():
        if wanted == "all" and split not in splits:
            command.tell(
                f"{data_dir} has no {' or '.join(names)}: {output_dir}/{split} is not made"
            )
    for split in splits:
        make = functools.partial(
            prepare, data_dir, split, output_dir, Settings(**others), processes
        )
        command.run(make, [data_dir], f"{output_dir}/{split}", unit="sentences")
