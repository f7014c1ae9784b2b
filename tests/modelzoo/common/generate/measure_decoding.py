"""Measures the cost of a token against its position, with the cache and without.

``python -m tests.modelzoo.common.generate.measure_decoding`` prints a table for a small model, or
with ``--layers 4 --hidden 768 --heads 12 --vocab 50257`` for a wider one. Without the cache, each
token runs the whole text again. It is no test: its figures depend on the machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import numpy as np

POSITIONS = (16, 32, 64, 128, 256, 511)
REPEATS = 7


def parse_arguments():
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=257)
    parser.add_argument("--batch_size", type=int, default=1)
    parser.add_argument("--device", help="/cpu:0 measures the host")
    return parser.parse_args()


def small_model(args, folder):
    """A gpt3 of these sizes with random weights."""
    from tests.modelzoo.language_models import SmallModel

    return SmallModel(
        "gpt3",
        folder,
        vocab_size=args.vocab,
        num_hidden_layers=args.layers,
        hidden_size=args.hidden,
        num_heads=args.heads,
        filter_size=4 * args.hidden,
        max_position_embeddings=512,
    )


def milliseconds(run):
    """Median elapsed and processor time of a call, after one that compiles."""
    run()
    times = []
    for _ in range(REPEATS):
        started, cpu = time.perf_counter(), time.process_time()
        run()
        times.append((time.perf_counter() - started, time.process_time() - cpu))
    return [1e3 * statistics.median(column) for column in zip(*times)]


def main():
    """Prints the table."""
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        model = small_model(args, folder)
        nothing = np.zeros(args.batch_size, bool)
        print("position  with cache: ms, cpu ms  without: ms, cpu ms")
        with model.decoder(not args.device) as decoder:
            for position in POSITIONS:
                ids = np.ones([args.batch_size, position], np.int32)
                without = milliseconds(lambda ids=ids: decoder.start(ids))
                cached = milliseconds(lambda ids=ids: decoder.append(ids[:, 0], nothing))
                print(
                    f"{position:8d}  {cached[0]:14.1f} {cached[1]:7.1f}"
                    f"  {without[0]:11.1f} {without[1]:7.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
