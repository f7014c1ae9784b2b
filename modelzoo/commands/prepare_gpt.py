"""Makes the records of GPT-2, GPT-3 and GPT-J from text and JSON lines, compressed or not.

For example, with the vocabulary of GPT-2::

    cerebras-tf prepare gpt --input_dir texts --output_dir pile_gpt2_msl2048/train \\
        --tokenizer_type GPT2Tokenizer --encoder_file encoder.json --vocab_file vocab.bpe

It only reads its arguments; ``modelzoo/gpt3/preparation.py`` does the work. A run that
was stopped goes on when the same command is given again.
"""

from __future__ import annotations

import functools
import os

from cerebras_tf.cli.arguments import any_int, positive_int, seed_int
from cerebras_tf.errors import ConfigError
from modelzoo.common.data.preparation import command, documents, input_files
from modelzoo.common.tokenizers import tokenizers
from modelzoo.gpt3.preparation import FILE_FORMATS, PreparationSettings, prepare


def add_arguments(parser):
    """Adds the command's arguments."""
    command.add_arguments(parser)
    add = parser.add_argument
    inputs = f"files, or folders of them: {', '.join(documents.SUFFIXES)}"
    add("--input_dir", nargs="+", required=True, help=inputs)
    add("--tokenizer_type", choices=tokenizers.KINDS, required=True)
    add("--vocab_file", help="merges of GPT-2 (vocab.bpe), tokenizer.json, or vocab.txt of BERT")
    add("--encoder_file", help="vocabulary of GPT-2 (encoder.json)")
    add("--max_seq_length", type=positive_int, default=2048, help="tokens of a record")
    add("--short_seq_prob", type=command.share, default=0.0, help="share of shortened records")
    add("--overlap_size", type=any_int, default=0, help="tokens that two records share")
    add("--eos_id", type=any_int, help="token that ends a document (default: the tokenizer's)")
    add(
        "--pad_id",
        type=any_int,
        help="token that fills a record (default: the tokenizer's, or eos_id)",
    )
    add("--text_key", default=documents.TEXT_KEY, help="key of the text in .jsonl rows")
    add("--ftfy", action="store_true", help="mend wrongly decoded characters with ftfy")
    forms = ("NFC", "NFKC", "NFD", "NFKD", "none")
    add("--ftfy_normalizer", choices=forms, help="Unicode normal form with --ftfy (default: NFC)")
    add("--wikitext-detokenize", action="store_true", help="undo the word splitting of WikiText")
    add("--file_format", choices=list(FILE_FORMATS), default="tfrecords")
    add("--files_per_record", type=positive_int, default=50_000, help="records of a file")
    add("--write_remainder", action="store_true", help="also write the last, padded record")
    add("--output_name", default="examples", help="beginning of the file names")
    add("--seed", type=seed_int, help="of the lengths of shortened records (default: 0)")


def run(args):
    """Runs the preparation."""
    output_dir, processes, others = command.split_options(args)
    inputs = others.pop("input_dir")
    for key, needed in (("ftfy_normalizer", "ftfy"), ("seed", "short_seq_prob")):
        if others[key] is None:
            del others[key]
        elif not others[needed]:
            raise ConfigError(
                f"--{key}: must come with --{needed}, without which it has no effect. Received: "
                f"{others[key]}. Give both, or leave it out."
            )
    settings = PreparationSettings(**others)
    files = input_files.find_inputs(inputs, documents.SUFFIXES, command.tell)
    documents.refuse_idle_key(files, settings.text_key)
    command.run(
        functools.partial(prepare, inputs, output_dir, settings, processes),
        inputs,
        output_dir,
        sum(map(os.path.getsize, files)),
        remedy=f"A record has {settings.max_seq_length} tokens: add text, lower --max_seq_length, "
        "or give --write_remainder.",
    )
