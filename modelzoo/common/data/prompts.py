"""Reads the prompts of text generation."""

import contextlib
import json
import sys
from dataclasses import dataclass, field, replace

import numpy as np

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.files.compressed import is_compressed
from modelzoo.common.files.json_text import read_json_lines, require_unicode, text_of
from modelzoo.common.files.text_lines import decode, numbered_lines
from modelzoo.common.files.text_sources import JSON_LINES, form_of, require_text
from modelzoo.common.tokenizers.tokenizers import check_number, load_tokenizer

TEXT_KEYS = ("prompt", "text")
TOKENS_KEY = "prompt_tokens"
STDIN = "standard input"
REFERENCE = "reference"  # the text that the completion of a row is scored by
# Keys that a completion's row adds to those of its prompt.
MADE_KEYS = ("prompt_number", "sample", "completion", "tokens", "log_probs", "finish_reason")


@dataclass(frozen=True)
class Prompt:
    """A text to continue.

    Attributes:
        where: its place, ``<file>:<line>``.
        text: the text; of a row with tokens, what they decode to.
        tokens: [n] int32.
    """

    where: str
    text: str
    tokens: np.ndarray
    others: dict = field(default_factory=dict)


def section_tokenizer(section, vocab_size):
    """Loads the tokenizer that an input section names."""
    tokenizer = load_tokenizer(
        section.tokenizer_type, section.vocab_file, section.encoder_file, section.eos_id
    )
    if tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f"tokenizer_type: must have at most the {vocab_size} tokens of the model. Received: "
            f"{section.tokenizer_type} with {tokenizer.vocab_size}. Set vocab_file and "
            "encoder_file to the vocabulary that the model was trained with."
        )
    check_number("eos_id", section.eos_id, vocab_size)
    return tokenizer


def read_prompts(path, tokenizer, vocab_size, limit):
    """Reads all prompts, so that a mistake in the last is reported before anything runs.

    Args:
        path: JSON lines (.jsonl, .ndjson or .json), or any other text with one prompt a line; see
            GptPromptsInput.
        limit: maximum number of tokens of prompt and completion; None for no limit.

    Returns:
        A list of Prompt.
    """
    if is_json_lines(path):
        prompts = [_of_row(row, where, tokenizer) for where, row in read_json_lines(path)]
    else:
        prompts = [_of_line(line, where, tokenizer) for where, line in numbered_lines(path, True)]
    if not prompts:
        raise DataError(f"{path}: must contain prompts. Received: an empty file. Add some.")
    for prompt in prompts:
        _check(prompt, vocab_size, limit)
    return [
        prompt if prompt.text else replace(prompt, text=tokenizer.decode(prompt.tokens))
        for prompt in prompts
    ]


def is_json_lines(path):
    """Whether a file has JSON lines, by its name; a file of another form than text is refused.

    A file that cannot be read is not: its reader raises the error.
    """
    try:
        form = form_of(path)
    except OSError:
        return False
    if form == JSON_LINES and not is_compressed(path):
        return True
    require_text(path)
    return False


def make_prompt(text, where, tokenizer):
    """Returns a Prompt; an empty text begins with the end-of-text token, as documents do."""
    require_unicode(text, where)
    tokens = tokenizer.encode(text) if text else np.array([tokenizer.eos_id], np.int32)
    return Prompt(where, text, tokens)


def read_stdin():
    """Returns the text of standard input without its last line end.

    Raises:
        DataError: it is empty, or not UTF-8.
    """
    data = getattr(sys.stdin, "buffer", sys.stdin).read()
    text = decode(data, STDIN) if isinstance(data, bytes) else data
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise DataError(
            f"{STDIN}: must contain a prompt. Received: an empty text. Set --prompt, or "
            "--interactive to type prompts."
        )
    return text


def typed_lines():
    """Yields the lines of standard input, until its end."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # lines can be edited
    shows = sys.stdin.isatty()
    while True:
        try:
            line = input("> " if shows else "")
            yield line.removeprefix("\ufeff")  # of a file in a pipe
        except EOFError:
            if shows:
                print()  # after the prompt
            return


def _of_line(line, where, tokenizer):
    if not line.strip():
        raise DataError(
            f"{where}: a prompt must be more than spaces. Received: {line!r:.60}. Remove the line; "
            "prompts of spaces need JSON lines."
        )
    return Prompt(where, line, tokenizer.encode(line))


def _of_row(row, where, tokenizer):
    given = [key for key in (*TEXT_KEYS, TOKENS_KEY) if key in row]
    if len(given) > 1:
        raise DataError(
            f"{where}: a prompt must be either text or tokens. Received: both {given[0]} and "
            f"{given[1]}. Remove one."
        )
    taken = given[0] if given else TEXT_KEYS[0]
    others = {key: value for key, value in row.items() if key != taken}
    _check_others(others, where)
    if taken != TOKENS_KEY:
        text = text_of(row, taken, where)
        return Prompt(where, text, tokenizer.encode(text), others)
    tokens = row[TOKENS_KEY]
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise DataError(
            f"{where}: {TOKENS_KEY} must be a list of integers. Received: {tokens!r:.60}. "
            "Correct the line."
        )
    if any(abs(token) >= 2**31 for token in tokens):
        raise DataError(
            f"{where}: {TOKENS_KEY} must be below {2**31}. Received: {max(tokens, key=abs)}. "
            "Correct the line."
        )
    return Prompt(where, "", np.array(tokens, np.int64), others)


def _check_others(others, where):
    """Refuses keys that cannot be written with the completion."""
    made = [key for key in MADE_KEYS if key in others]
    if made:
        raise DataError(
            f"{where}: a prompt's keys are copied to its completion and must not be "
            f"{', '.join(MADE_KEYS)}. Received: {', '.join(made)}. Rename or remove it."
        )
    try:
        text = json.dumps(others, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: a prompt's keys are copied to its completion and must be finite numbers. "
            f"Received: {others!r:.60} ({error}). Correct the line."
        ) from error
    require_unicode(text, where)
    if REFERENCE in others:
        text_of(others, REFERENCE, where)


def _check(prompt, vocab_size, limit):
    tokens = prompt.tokens
    if not len(tokens):
        raise DataError(
            f"{prompt.where}: a prompt must have at least one token. Received: none. Remove the "
            "line, or add text."
        )
    if limit is not None and len(tokens) >= limit:
        raise DataError(
            f"{prompt.where}: a prompt must be shorter than {limit} tokens, max_sequence_length or "
            f"the model's positions. Received: {len(tokens)} tokens. Shorten it."
        )
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise DataError(
            f"{prompt.where}: tokens must be 0 to {vocab_size - 1}. Received: {tokens.min()} to "
            f"{tokens.max()}. Correct the line."
        )
