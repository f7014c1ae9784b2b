"""Prints completions as they are generated."""

import contextlib
import io
import sys

from cerebras_tf.api import progress_bar
from modelzoo.common.generate.generate import TextStream, stream, without_controls
from modelzoo.common.generate.prediction import make_requests


def complete(decoder, tokenizer, prompts, section, limit):
    """Prints every prompt with its completions; a blank line is between two of them.

    Where the text goes to a file, a bar on the terminal shows the tokens.

    Args:
        prompts: iterable of Prompt, which may read them from the keyboard.
        section: GptPromptsInput, how to sample.
        limit: number of positions of the model.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # whose encoding may lack characters
        sys.stdout.reconfigure(errors="replace")
    begin = ""
    for number, prompt in enumerate(prompts):
        for request in make_requests([prompt], section, number):
            _write(begin + prompt.text)
            _complete(decoder, tokenizer, request, limit)
            begin = "\n"


def _complete(decoder, tokenizer, request, limit):
    if len(request.prompt) > limit:
        print(
            f"{request.key[2].where}: of {len(request.prompt)} tokens, the model reads the last "
            f"{limit}",
            file=sys.stderr,
        )
    text = TextStream(_write, tokenizer)
    hidden = contextlib.nullcontext() if sys.stdout.isatty() else None
    with hidden or progress_bar(request.max_new_tokens, "token") as bar:
        for _ in stream(decoder, request, tokenizer, limit):
            text.update(request)
            if bar is not None:
                bar.update()
    _write("\n")


def _write(text):
    sys.stdout.write(without_controls(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
