"""Makes the records of BERT pre-training from text and JSON lines, compressed or not.

For example, with the vocabulary of BERT base uncased and a blank line between documents::

    cerebras-tf prepare bert --input_dir texts --output_dir train_uncased_msl128 \\
        --vocab_file vocab.txt --do_lower_case --multiple_docs_in_single_file

stores pairs of segments with masks. ``--mlm_only`` stores single sequences with masks, and with
``--disable_masking`` their tokens, which are masked while training reads them.

It only reads its arguments; ``modelzoo/bert/preparation.py`` does the work. A run that
was stopped goes on when the same command is given again.
"""

from __future__ import annotations

import functools
import os

from cerebras_tf.cli.arguments import any_int, positive_int, seed_int
from cerebras_tf.errors import ConfigError
from modelzoo.bert.preparation import PreparationSettings, listed_inputs, prepare
from modelzoo.common.data.preparation import command, documents, input_files


def add_arguments(parser):
    """Adds the command's arguments."""
    command.add_arguments(parser)
    add = parser.add_argument
    add(
        "--input_dir", nargs="+", help=f"files, or folders of them: {', '.join(documents.SUFFIXES)}"
    )
    add("--metadata_files", nargs="+", help="files that name a document file on each line")
    add("--input_files_prefix", type=str, default="", help="folder of the files that those name")
    add_text_options(add)
    add("--vocab_file", required=True, help="vocab.txt of BERT, a token on each line")
    add("--do_lower_case", action="store_true", help="lower case without accents")
    add("--mlm_only", action="store_true", help="single sequences, no next sentence")
    add("--disable_masking", action="store_true", help="with --mlm_only: store tokens, unmasked")
    add("--max_seq_length", type=positive_int, default=128, help="tokens of a record")
    add("--dupe_factor", type=positive_int, help="rounds with other masks (default: 10, or 1)")
    add("--short_seq_prob", type=command.share, default=0.1, help="share of shortened records")
    add("--min_short_seq_length", type=positive_int, help="tokens of those, at least")
    add("--masked_lm_prob", type=command.share, default=0.15, help="share of masked tokens")
    add("--max_predictions_per_seq", type=positive_int, default=20)
    add("--mask_whole_word", action="store_true", help="mask the parts of a word together")
    cross = "with --mlm_only: go on with the next document in a sequence"
    add("--allow_cross_document_examples", action="store_true", help=cross)
    add("--document_separator_token", default="[SEP]", help="between documents of a sequence")
    add(
        "--overlap_size",
        type=any_int,
        default=0,
        help="with --mlm_only: tokens that sequences share",
    )
    add("--files_per_record", type=positive_int, default=50_000, help="records of a file")
    add("--name", default="examples", help="beginning of the file names")
    add("--seed", type=seed_int, default=0, help="of pairs, lengths and masks")


def add_text_options(add):
    """Adds the options that tell documents and sentences apart."""
    several = "files hold several documents"
    add("--multiple_docs_in_single_file", action="store_true", help=several)
    line = "the line between those; a blank one if empty"
    add("--multiple_docs_separator", type=str, default="", help=line)
    add("--single_sentence_per_line", action="store_true", help="split at line breaks only")
    add("--spacy_model", help="split sentences with this model of spaCy, not by rules")
    add("--wikitext-detokenize", action="store_true", help="undo the word splitting of WikiText")
    add("--text_key", default=documents.TEXT_KEY, help="key of the text in .jsonl rows")


def run(args):
    """Runs the preparation."""
    output_dir, processes, others = command.split_options(args)
    inputs = others.pop("input_dir") or []
    listings, prefix = others.pop("metadata_files"), others.pop("input_files_prefix")
    inputs = [*inputs, *(listed_inputs(listings, prefix, command.tell) if listings else [])]
    if not inputs:
        raise ConfigError(
            "--input_dir or --metadata_files: must name text. Received: neither. Give one."
        )
    settings = PreparationSettings(**others)
    files = input_files.find_inputs(inputs, documents.SUFFIXES, command.tell)
    documents.refuse_idle_key(files, settings.text_key)
    command.run(
        functools.partial(prepare, inputs, output_dir, settings, processes),
        inputs,
        output_dir,
        sum(map(os.path.getsize, files)),
        remedy="Add text.",
    )
