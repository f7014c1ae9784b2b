"""Trains a vocabulary from text: byte-level BPE, WordPiece, BPE or unigram.

For example, one vocabulary for both sides of a translation::

    cerebras-tf prepare vocab --input_files train.en train.de --algorithm unigram \\
        --vocab_size 8000 --output_dir vocab_en_de

It only reads its arguments; ``modelzoo/common/data/preparation/vocabulary.py`` trains. The
special tokens come first; by default those of GPT-2 (byte_bpe), BERT (wordpiece), or <pad>, <unk>,
<s> and </s> (bpe and unigram).
"""

from __future__ import annotations

import os
import time

from cerebras_tf.cli.arguments import positive_int
from modelzoo.common.data.preparation import command, documents, input_files
from modelzoo.common.data.preparation.vocabulary import SPECIAL_TOKENS, VocabularySettings, train


def add_arguments(parser):
    """Adds the command's arguments."""
    command.add_arguments(parser, output_dir="./vocab/")
    add = parser.add_argument
    inputs = f"text files of any name, or folders of {', '.join(documents.SUFFIXES)}"
    add("--input_files", nargs="+", required=True, help=inputs)
    add("--algorithm", choices=list(SPECIAL_TOKENS), required=True)
    add("--vocab_size", type=positive_int, required=True, help="tokens, special ones included")
    add("--min_frequency", type=positive_int, help="of pairs that are joined (default: 2)")
    add(
        "--special_tokens",
        nargs="+",
        default=[],
        help="tokens 0, 1, ... (default: GPT-2's, BERT's or <pad> <unk> <s> </s>)",
    )
    add("--limit_alphabet", type=positive_int, help="most characters (default: all)")
    add("--do_lower_case", action="store_true", help="lower case without accents, for wordpiece")
    add("--text_key", default=documents.TEXT_KEY, help="key of the text in .jsonl rows")


def run(args):
    """Trains and writes a vocabulary."""
    import tqdm

    output_dir, processes, others = command.split_options(args)
    inputs = others.pop("input_files")
    os.environ["RAYON_NUM_THREADS"] = str(processes)  # the threads of the tokenizers library
    settings = VocabularySettings(**{**others, "special_tokens": tuple(others["special_tokens"])})
    files = input_files.find_inputs(inputs, documents.SUFFIXES, command.tell)
    documents.refuse_idle_key(files, settings.text_key)
    total = sum(map(os.path.getsize, files))
    started = time.monotonic()
    with tqdm.tqdm(total=total, unit="B", unit_scale=True, disable=None) as bar:
        manifest = train(inputs, output_dir, settings, bar.update)
    elapsed_s = time.monotonic() - started
    asked = settings.vocab_size
    short = (
        f" of the {asked} asked for: the text has no more" if manifest["vocab_size"] < asked else ""
    )
    names = ", ".join(entry["file"] for entry in manifest["files"])
    print(
        f"{manifest['vocab_size']} tokens{short}; from {manifest['counts']['lines']} lines "
        f"({total / 1e6 / elapsed_s:.1f} MB/s); {names} in {output_dir} ({elapsed_s:.1f} s)"
    )
