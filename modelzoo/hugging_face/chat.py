"""Tokens of conversations, and which of them the loss counts."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.user_files import read_text
from modelzoo.common.files.json_text import read_json_lines
from modelzoo.common.files.path_advice import advice_on_path
from modelzoo.common.train.console import counted, logger

IGNORED = -100  # the label of a token without weight
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
ASSISTANT = "assistant"
PROBE = [
    {"role": "user", "content": "a"},
    {"role": ASSISTANT, "content": "b"},
    {"role": "user", "content": "c"},
    {"role": ASSISTANT, "content": "d"},
]


@dataclass(frozen=True)
class ChatExample:
    """The tokens of a conversation, or of a part of it.

    Attributes:
        ids: [n] int32.
        weights: [n] int32, 1 for a token that is to be predicted, else 0.
    """

    ids: np.ndarray
    weights: np.ndarray

    @property
    def labels(self):
        """The next tokens, IGNORED for those without weight and at the end: [n] int32."""
        labels = np.full(len(self.ids), IGNORED, np.int32)
        labels[:-1] = np.where(self.weights[1:], self.ids[1:], IGNORED)
        return labels


def load_tokenizer(folder):
    """Loads a tokenizer of transformers from a folder."""
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers and its libraries raise errors of several classes
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"tokenizer: must be a folder with a tokenizer of transformers. Received: {folder!r}, "
            f"{reason}. {advice_on_path(folder, 'Use a folder that save_pretrained wrote.')}"
        ) from error


def read_template(path):
    """Returns the text of a Jinja template, None without a path."""
    try:
        return None if path is None else read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"chat_template: must be a file of a Jinja template. Received: {path!r}, {error}. "
            f"{advice_on_path(path, 'Check the path.')}"
        ) from error


class ChatEncoder:
    """Makes tokens of conversations with a chat template.

    The loss counts turns of the assistant, except those with ``"weight": 0`` in ``messages``.

    A template with ``{% generation %}`` marks the tokens of the loss itself. With another one, a
    turn of the assistant is what the conversation up to and including it has more than the prompt
    for this turn. If the template renders earlier turns differently from the last one, every turn
    of the assistant becomes an example of its own, with its prompt as the model sees it.

    Args:
        tokenizer: of transformers.
        chat_template: a Jinja template; None for that of the tokenizer.

    Attributes:
        pad_id: the token of padding.

    Raises:
        ConfigError: there is no template, or the model would not learn to end its turns.
    """

    def __init__(self, tokenizer, chat_template=None):
        self._tokenizer = tokenizer
        self._template = chat_template or getattr(tokenizer, "chat_template", None)
        if not self._template:
            raise ConfigError(
                f"chat_template: {tokenizer.name_or_path} has none. Received: null. Set it to a "
                "file of a Jinja template, or use the tokenizer of a chat model."
            )
        self._is_marked = bool(GENERATION.search(str(self._template)))
        self._special = set(tokenizer.get_added_vocab().values()) | set(tokenizer.all_special_ids)
        pad_id = tokenizer.pad_token_id
        self.pad_id = (tokenizer.eos_token_id or 0) if pad_id is None else pad_id
        self._check_stop()

    def encode(self, row):
        """Encodes a conversation.

        Args:
            row: has ``messages``, or ``prompt`` and ``completion``; ``tools`` are passed on to the
                template.

        Returns:
            A list of ChatExample.

        Raises:
            DataError: the row has other keys or values, or no turn of the assistant.
        """
        options = {"tools": row["tools"]} if row.get("tools") else {}
        if "messages" in row:
            return self._conversation(checked_messages(row["messages"]), options)
        if not {"prompt", "completion"} <= set(row):
            raise DataError(
                "must have the key messages, or prompt and completion. Received: "
                f"{', '.join(row) or 'no keys'}."
            )
        prompt, completion = row["prompt"], row["completion"]
        if isinstance(prompt, str) and isinstance(completion, str):
            end = self._tokenizer.eos_token or ""
            completion += "" if completion.endswith(end) else end
            first, whole = (self._tokenizer(t)["input_ids"] for t in (prompt, prompt + completion))
        else:
            prompt, completion = checked_messages(prompt), checked_messages(completion)
            if any(is_left_out(each) for each in completion):
                raise DataError(
                    "completion: its messages must have no weight 0. Received: weight 0. Move it "
                    "to the prompt, or use messages."
                )
            first = self._ids(prompt, True, options)
            whole = self._ids(prompt + completion, False, options)
        start = common_prefix(first, whole)
        return [_example(whole, [(start, len(whole))])]

    def _conversation(self, messages, options):
        turns = [place for place, each in enumerate(messages) if each["role"] == ASSISTANT]
        counts = [not is_left_out(messages[place]) for place in turns]
        if not any(counts):
            received = "only turns with weight 0" if turns else "none"
            raise DataError(f"must have a turn of the assistant. Received: {received}.")
        if self._is_marked:
            found = self._render(messages, False, options, return_assistant_tokens_mask=True)
            weights = _of_turns(np.array(found["assistant_masks"], np.int32), counts)
            return [_example(found["input_ids"], weights=weights)]
        turns = list(itertools.compress(turns, counts))
        if not turns[0]:
            raise DataError(
                "must have a message before the first turn of the assistant, because the chat "
                "template does not mark turns. Received: none. Add one, set the turn's weight to "
                "0, or mark the turns with {% generation %} in a chat_template."
            )
        spans = [
            (self._ids(messages[:at], True, options), self._ids(messages[: at + 1], False, options))
            for at in turns
        ]
        whole = spans[-1][1]
        if turns[-1] + 1 < len(messages):
            whole = self._ids(messages, False, options)
        for prompt, turn in spans:
            if turn[: len(prompt)] != prompt:
                text = self._tokenizer.decode(prompt[common_prefix(prompt, turn) :])
                raise DataError(
                    "the chat template must render a turn of the assistant after its prompt. "
                    f"Received: a turn without {text!r}. Mark the turns with "
                    "{% generation %} in a chat_template.",
                    code="chat-template-turns",
                )
        is_one = all(whole[: len(turn)] == turn for _, turn in spans)
        if is_one:
            return [_example(whole, [(len(prompt), len(turn)) for prompt, turn in spans])]
        return [_example(turn, [(len(prompt), len(turn))]) for prompt, turn in spans]

    def _render(self, messages, prompts, options, **more):
        try:
            return self._tokenizer.apply_chat_template(
                messages,
                chat_template=self._template,
                add_generation_prompt=prompts,
                tokenize=True,
                return_dict=True,
                **options,
                **more,
            )
        except Exception as error:  # of Jinja: the template raises what it does not support
            raise DataError(
                f"the chat template must accept the conversation. Received: {error}. Change the "
                "messages, or use another chat_template."
            ) from error

    def _ids(self, messages, prompts, options):
        return list(self._render(messages, prompts, options)["input_ids"])

    def _check_stop(self):
        """Refuses a template with which the end of a turn has no weight."""
        try:
            found = self._conversation(PROBE, {})
        except DataError as error:
            raise ConfigError(f"chat_template: {error}") from error
        for example in found:
            ends = np.flatnonzero(np.diff(np.append(example.weights, 0)) < 0)
            for end in ends:
                span = example.ids[: end + 1][::-1]
                last = next((i for i in span if self._tokenizer.decode([i]).strip()), -1)
                if int(last) in self._special:
                    continue
                raise ConfigError(
                    "chat_template: must end a turn of the assistant with a special token that the "
                    f"loss counts. Received: {self._tokenizer.decode([int(last)])!r} at its end.",
                    code="chat-template-stop",
                )
            if not len(ends):
                raise ConfigError(
                    "chat_template: must mark the turns of the assistant. Received: no token "
                    "within {% generation %}.",
                    code="chat-template-stop",
                )

    @property
    def vocabulary(self):
        """Numbers of tokens, by token."""
        return self._tokenizer.get_vocab()

    def show(self, example):
        """Returns the tokens of an example with their weights, one a line."""
        tokens = [self._tokenizer.decode([int(number)]) for number in example.ids]
        rows = zip(example.weights, example.ids, tokens)
        return "\n".join(f"{weight} {number:>7} {token!r}" for weight, number, token in rows)


def _example(ids, spans=(), weights=None):
    if weights is None:
        weights = np.zeros(len(ids), np.int32)
        for start, end in spans:
            weights[start:end] = 1
    return ChatExample(np.array(ids, np.int32), np.array(weights, np.int32))


def _of_turns(mask, counts):
    """Returns a mask of the turns' tokens without those of turns that do not count."""
    if all(counts):
        return mask
    starts = (np.diff(mask, prepend=0) > 0).cumsum()  # the number of the turn, from 1
    if starts.max(initial=0) != len(counts):
        raise DataError(
            "the chat template must mark each turn of the assistant with {% generation %}, since "
            f"some have weight 0. Received: {starts.max(initial=0)} marked parts for "
            f"{len(counts)} turns. Change the template, or split the conversation."
        )
    return mask * np.array([False, *counts])[starts]


def is_left_out(message):
    """Returns whether a message has weight 0, as in the files of OpenAI; raises for others."""
    weight = message.get("weight")
    if weight is None or weight in (0, 1) and message["role"] == ASSISTANT:
        return weight == 0
    raise DataError(
        "weight: must be 0 or 1, in a message of the assistant. Received: "
        f"{weight!r} in one of {message['role']}."
    )


def common_prefix(first, second):
    """Returns the number of equal tokens at the beginning."""
    pairs = zip(first, second)
    same = (place for place, (a, b) in enumerate(pairs) if a != b)
    return next(same, min(len(first), len(second)))


def checked_messages(messages):
    """Returns messages if each has a role and a content; else raises a DataError."""
    rows = messages if isinstance(messages, list) else [None]
    if rows and all(isinstance(row, dict) and isinstance(row.get("role"), str) for row in rows):
        for row in rows:
            is_left_out(row)
        return messages
    raise DataError(
        'messages must be a list of {"role": ..., "content": ...}. Received: '
        f"{str(messages)[:100]}."
    )


def find_chat_files(sources):
    """Lists the JSON lines files of a path, or of a list of files and folders."""
    found = []
    for source in [sources] if isinstance(sources, str) else sources:
        path = Path(source)
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path] * path.is_file()
        if not files:
            raise DataError(
                "data_dir: must be a .jsonl file, or a folder with such files. Received: "
                f"{source!r}. {advice_on_path(source)}"
            )
        found += files
    return found


def encoded(encoder, rows):
    """Yields where each conversation is, and its examples; errors name the place.

    Args:
        rows: pairs of a place and a conversation.
    """
    for where, row in rows:
        try:
            found = encoder.encode(row)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
        yield where, found


def read_examples(encoder, sources, length):
    """Encodes all conversations of files.

    Args:
        length: tokens of an example, at most. Longer ones lose their end, and are dropped if the
            rest has no weight; how many is logged.

    Returns:
        A list of ChatExample, not empty.
    """
    examples, truncated, dropped, count = [], 0, 0, 0
    files = find_chat_files(sources)
    rows = itertools.chain.from_iterable(map(read_json_lines, files))
    for _, found in encoded(encoder, rows):
        count += 1
        for example in found:
            if len(example.ids) > length:
                truncated += 1
                example = ChatExample(example.ids[:length], example.weights[:length])
            if example.weights[1:].any():
                examples.append(example)
            else:
                dropped += 1
    if not examples:
        raise DataError(
            f"data_dir: must have a conversation with a token that has a weight. Received: {count} "
            f"conversations, {truncated} of them longer than {length} tokens. Increase "
            "max_sequence_length."
        )
    tokens, weighted = (sum(int(f(each)) for each in examples) for f in (_length, _counted))
    logger().info(
        "%s: %s, %s, %d of them with a weight",
        counted(count, "conversation"),
        counted(len(examples), "example"),
        counted(tokens, "token"),
        weighted,
    )
    if truncated:
        logger().warning(
            "%d examples are longer than %d tokens and lose their end; %d of them are dropped, "
            "because the rest has no token with a weight",
            truncated,
            length,
            dropped,
        )
    return examples


def _length(example):
    return len(example.ids)


def _counted(example):
    return example.weights.sum()


def pack(lengths, size):
    """Puts examples into rows of at most `size` tokens: best-fit decreasing.

    Returns:
        Lists of the numbers of examples, one a row.
    """
    rows: list[list[int]] = []
    free: dict[int, list[int]] = {}  # rows by the number of tokens that are left
    for number in sorted(range(len(lengths)), key=lambda each: (-lengths[each], each)):
        length = lengths[number]
        left = next((n for n in range(length, size + 1) if free.get(n)), None)
        if left is None:
            rows.append([])
            row, left = len(rows) - 1, size
        else:
            row = free[left].pop(0)
        rows[row].append(number)
        free.setdefault(left - length, []).append(row)
    return rows


def packed_row(examples, size, pad_id):
    """Concatenates examples and pads them to `size`.

    Positions restart with each example, and for padding, so that attention does not cross them.

    Returns:
        ``input_ids``, ``labels`` and ``position_ids``, [size] int32, by name.
    """
    lengths = [len(example.ids) for example in examples]
    padding = size - sum(lengths)
    return {
        "input_ids": np.concatenate([*(e.ids for e in examples), np.full(padding, pad_id)]),
        "labels": np.concatenate([*(e.labels for e in examples), np.full(padding, IGNORED)]),
        "position_ids": np.concatenate([np.arange(n) for n in (*lengths, padding)]),
    }
