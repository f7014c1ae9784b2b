"""Makes the TFRecords of the encoder-decoder from two texts, a sentence and its translation a line.

For example, with a vocabulary of both languages::

    cerebras-tf prepare vocab --input_files train.en train.de --algorithm bpe \\
        --vocab_size 37000 --output_dir wmt16_en_de/vocab
    cerebras-tf prepare translation --source_file train.en --target_file train.de \\
        --tokenizer_file wmt16_en_de/vocab/tokenizer.json --output_dir wmt16_en_de/train

It only reads its arguments; ``modelzoo/transformer/preparation.py`` does the work. A
run that was stopped goes on when the command is given again.
"""

from __future__ import annotations

import os

from modelzoo.common.data.preparation import command
from modelzoo.transformer.preparation import prepare


def add_arguments(parser):
    """Adds the command's arguments."""
    command.add_arguments(parser)
    add = parser.add_argument
    add("--source_file", required=True, help="text to translate from, a sentence a line")
    add("--target_file", required=True, help="its translation, line by line")
    add("--tokenizer_file", required=True, help="tokenizer.json of both languages")


def run(args):
    """Runs the preparation."""
    output_dir, processes, others = command.split_options(args)
    files = others["source_file"], others["target_file"]

    def make(advance):
        return prepare(*files, output_dir, others["tokenizer_file"], processes, advance)

    total = os.path.getsize(files[0]) if os.path.exists(files[0]) else None
    command.run(make, files, output_dir, total, remedy="Add text.")
