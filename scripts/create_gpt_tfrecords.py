"""Makes the TFRecords of GPT-2 and GPT-3 from text, .jsonl and .jsonl.zst files.

For example, with the vocabulary of GPT-2::

    python scripts/create_gpt_tfrecords.py --input_dir texts --output_dir pile_gpt2_msl2048/train \\
        --tokenizer_type GPT2Tokenizer --encoder_file encoder.json --vocab_file vocab.bpe

It deliberately only reads its arguments and shows progress; ``modelzoo/gpt3/preparation.py`` does
the work. A run that was stopped goes on when the same command is given again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cerebras_tf.cli.exit_codes import run_main
from cerebras_tf.errors import DataError
from modelzoo.common.preparation import documents
from modelzoo.gpt3.preparation import PreparationSettings, prepare

KINDS = ("GPT2Tokenizer", "NeoXTokenizer", "ByteTokenizer")


def positive(text):
    """Reads a whole number above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def parse_arguments(argv):
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--input_dir", nargs="+", required=True, help="files, or folders of them")
    add("--output_dir", default="./data_dir/", help="folder of the records")
    add("--tokenizer_type", choices=KINDS, required=True)
    add("--vocab_file", help="merges of GPT-2 (vocab.bpe), or tokenizer.json of NeoX")
    add("--encoder_file", help="vocabulary of GPT-2 (encoder.json)")
    add("--max_seq_length", type=positive, default=2048, help="tokens of a record")
    add("--eos_id", type=int, help="token that ends a document (default: the tokenizer's)")
    add("--pad_id", type=int, help="token that fills the last record (default: eos_id)")
    add("--text_key", default="text", help="key of the text in .jsonl rows")
    add("--files_per_record", type=positive, default=50_000, help="records of an output file")
    add("--write_remainder", action="store_true", help="also write the last, padded record")
    add("--output_name", default="examples", help="beginning of the file names")
    add("--processes", type=int, default=0, help="processes that tokenize; 0: one a core")
    add("--debug", action="store_true", help="show the traceback of an error")
    return parser.parse_args(argv)


def main(argv):
    """Runs the preparation."""
    import tqdm

    args = vars(parse_arguments(argv))
    inputs, output_dir = args.pop("input_dir"), args.pop("output_dir")
    processes = args.pop("processes") or len(os.sched_getaffinity(0))
    args.pop("debug")
    sizes = [os.path.getsize(path) for path in documents.find_inputs(inputs)]
    started = time.monotonic()
    # Compressed input is longer than its file: then only the amount is shown, not the share.
    compressed = any(p.endswith(".zst") for p in documents.find_inputs(inputs))
    total = None if compressed else sum(sizes)
    with tqdm.tqdm(total=total, unit="B", unit_scale=True, disable=None) as bar:
        manifest = prepare(inputs, output_dir, PreparationSettings(**args), processes, bar.update)
    elapsed_s = time.monotonic() - started
    if not manifest["records"]:
        raise DataError(
            f"{', '.join(inputs)}: must fill at least one record of {args['max_seq_length']} "
            f"tokens. Received: {manifest['tokens']} tokens. Add text, lower --max_seq_length, or "
            "give --write_remainder."
        )
    print(
        f"{manifest['documents']} documents, {manifest['tokens']} tokens, {manifest['records']} "
        f"records in {len(manifest['files'])} files in {output_dir} ({elapsed_s:.1f} s, "
        f"{sum(sizes) / 1e6 / elapsed_s:.1f} MB/s)"
    )


if __name__ == "__main__":
    sys.exit(run_main(main))
