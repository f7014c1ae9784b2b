"""Makes the TFRecords of the encoder-decoder from two texts, a sentence and its translation a line.

For example, with a vocabulary of both languages::

    python scripts/create_vocab.py --input_files train.en train.de --algorithm bpe \\
        --vocab_size 37000 --output_dir wmt16_en_de/vocab
    python scripts/create_translation_tfrecords.py --source_file train.en --target_file train.de \\
        --tokenizer_file wmt16_en_de/vocab/tokenizer.json --output_dir wmt16_en_de/train

``modelzoo/transformer/preparation.py`` does the work. A run that was stopped goes on when the
command is given again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cerebras_tf.cli.exit_codes import run_main
from modelzoo.common.preparation import command
from modelzoo.transformer.preparation import prepare


def parse_arguments(argv):
    """Reads the command line."""
    parser = command.make_parser(__doc__)
    add = parser.add_argument
    add("--source_file", required=True, help="text to translate from, a sentence a line")
    add("--target_file", required=True, help="its translation, line by line")
    add("--tokenizer_file", required=True, help="tokenizer.json of both languages")
    return parser.parse_args(argv)


def main(argv):
    """Runs the preparation."""
    output_dir, processes, others = command.split_options(parse_arguments(argv))
    files = others["source_file"], others["target_file"]

    def make(advance):
        return prepare(*files, output_dir, others["tokenizer_file"], processes, advance)

    total = os.path.getsize(files[0]) if os.path.exists(files[0]) else None
    command.run(make, output_dir, total, remedy="Add text.")


if __name__ == "__main__":
    sys.exit(run_main(main))
