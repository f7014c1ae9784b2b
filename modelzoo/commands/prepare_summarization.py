"""Makes the TFRecords that fine-tune GPT-J for summarization, from CNN/DailyMail.

For example::

    cerebras-tf prepare summarization --input_dir cnn_dm/train.jsonl \\
        --output_dir cnn_dm_msl1024/train --tokenizer_type GPT2Tokenizer \\
        --encoder_file encoder.json --vocab_file vocab.bpe --truncate_article

It only reads its arguments; ``modelzoo/gptj/preparation.py`` does the work. A run that
was stopped goes on when the same command is given again.
"""

from __future__ import annotations

import functools
import os

from cerebras_tf.cli.arguments import any_int, positive_int
from modelzoo.common.data.preparation import cnn_dailymail, command, input_files
from modelzoo.common.tokenizers import tokenizers
from modelzoo.gptj.preparation import SummarizationSettings, prepare
from modelzoo.gptj.prompts import write_prompts


def add_arguments(parser):
    """Adds the command's arguments."""
    command.add_arguments(parser)
    add = parser.add_argument
    inputs = f"files, or folders of them: {', '.join(cnn_dailymail.SUFFIXES)}"
    add("--input_dir", nargs="+", required=True, help=inputs)
    add("--tokenizer_type", choices=tokenizers.KINDS, default="GPT2Tokenizer")
    add("--vocab_file", help="merges of GPT-2 (vocab.bpe), or tokenizer.json")
    add("--encoder_file", help="vocabulary of GPT-2 (encoder.json)")
    add("--max_seq_length", type=positive_int, default=1024, help="tokens of a record")
    add("--truncate_article", action="store_true", help="cut articles that are too long")
    add("--eos_id", type=any_int, help="token that ends a text (default: the tokenizer's)")
    add("--pad_id", type=any_int, help="token that fills a record (default: eos_id)")
    add("--sep_id", type=any_int, help="token before the abstract (default: a new one)")
    add("--files_per_record", type=positive_int, default=50_000, help="records of a file")
    add(
        "--prompts",
        type=positive_int,
        metavar="N",
        help="write prompts.jsonl with room for N tokens of abstract instead of records",
    )
    add("--name", default="examples", help="beginning of the file names")


def run(args):
    """Runs the preparation."""
    output_dir, processes, others = command.split_options(args)
    inputs, prompts = others.pop("input_dir"), others.pop("prompts")
    files = input_files.find_inputs(inputs, cnn_dailymail.SUFFIXES, command.tell)
    settings = SummarizationSettings(**others)
    if prompts:
        path, count = write_prompts(inputs, output_dir, settings, prompts)
        print(f"{count} prompts in {path}")
        return
    command.run(
        functools.partial(prepare, inputs, output_dir, settings, processes),
        inputs,
        output_dir,
        sum(map(os.path.getsize, files)),
        remedy="Give --truncate_article, or a larger --max_seq_length.",
    )
