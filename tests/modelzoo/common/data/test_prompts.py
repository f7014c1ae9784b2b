"""Tests of reading prompts and jsonl: what is read, and what file and line mistakes are told."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.data.prompts import read_prompts, section_tokenizer
from modelzoo.common.files.json_text import read_json_lines
from modelzoo.common.tokenizers.tokenizers import ByteTokenizer


def read(path, text, limit=20):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_prompts(str(path), ByteTokenizer(), 257, limit)


def test_a_text_file_holds_one_prompt_a_line(tmp_path):
    prompts = read(tmp_path / "a.txt", "one \ntwo\r\n")
    assert [(p.text, bytes(p.tokens.tolist())) for p in prompts] == [
        ("one ", b"one "),
        ("two", b"two"),
    ]
    assert prompts[1].where == f"{tmp_path}/a.txt:2"


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_byte_order_mark_is_no_part_of_the_first_prompt(tmp_path, name):
    line = "one" if name == "a.txt" else '{"prompt": "one"}'
    prompts = read(tmp_path / name, b"\xef\xbb\xbf" + f"{line}\n{line}".encode())
    assert [prompt.text for prompt in prompts] == ["one", "one"]


@pytest.mark.parametrize("blank", ["", "  ", "\t"])
def test_a_blank_line_is_refused_in_text_and_left_out_of_json_lines(tmp_path, blank):
    says = rf"a.txt:2: a prompt must be more than spaces. Received: {re.escape(repr(blank))}\. Rem"
    with pytest.raises(DataError, match=says):
        read(tmp_path / "a.txt", f"one\n{blank}\ntwo\n")
    assert len(read(tmp_path / "a.jsonl", '{"prompt": "one"}\n  \n{"prompt": "  "}\n')) == 2


@pytest.mark.parametrize("name", ["a.JSONL", "a.json"])
def test_json_lines_are_known_by_other_endings_too(tmp_path, name):
    assert read(tmp_path / name, '{"prompt": "one"}\n')[0].text == "one"


def test_jsonl_holds_texts_or_tokens_and_keeps_other_keys(tmp_path):
    rows = [{"prompt": "ab", "id": 7}, {"text": "c\nd"}, {"prompt_tokens": [104, 105]}]
    prompts = read(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert [prompt.text for prompt in prompts] == ["ab", "c\nd", "hi"]
    assert prompts[0].others == {"id": 7}
    assert prompts[2].tokens.tolist() == [104, 105]


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "must be JSON"),
        ("[1]", "must be an object of keys"),
        ('{"prompt": 3}', "prompt must be a text. Received: 3"),
        ('{"question": "a"}', "prompt must be a text. Received: None among the keys question"),
        (r'{"prompt": "\ud800"}', "must be text of whole characters"),
        ('{"prompt": ""}', "a prompt must have a token"),
        ('{"text": "a", "prompt_tokens": [1]}', "Received: both text and prompt_tokens"),
        ('{"text": "a", "prompt": "b"}', "Received: both prompt and text. Remove one"),
        (r'{"prompt": "a", "x": ["\ud800"]}', "must be text of whole characters"),
        (r'{"prompt": "a", "\ud800": 1}', "must be text of whole characters"),
        ('{"prompt": "a", "reference": 3}', "reference must be a text. Received: 3"),
        ('{"prompt": "a", "reference": null}', "reference must be a text. Received: None"),
        ('{"prompt": "a", "sample": 1, "tokens": 2}', "whose own are .* Received: sample, tokens"),
        ('{"prompt_tokens": []}', "a prompt must have a token"),
        ('{"prompt_tokens": ["a"]}', "must be a list of whole numbers"),
        ("[" * 5000, "must be JSON"),
        ('{"prompt": "a", "score": Infinity}', "score .* must hold finite numbers.*Received: inf"),
        ('{"prompt": "a", "s": [1, {"t": NaN}]}', r"s .* must hold .*Received: \[1, {'t': nan}\]"),
        ('{"prompt": "a", "score": 1e999}', "score .* must hold finite numbers.*Received: inf"),
        ('{"prompt": NaN}', "prompt must be a text. Received: nan"),
        ('{"prompt_tokens": [NaN]}', "must be a list of whole numbers"),
        ('{"prompt_tokens": [1' + 23 * "0" + "]}", "prompt_tokens must be below 2147483648"),
        ('{"prompt_tokens": [257]}', "tokens must be 0 to 256. Received: 257 to 257"),
        ('{"prompt": "12345678901234567890"}', "must leave room in 20 tokens.*Received: 20"),
        (b'{"prompt": "\xff"}', "must be UTF-8 text"),
    ],
)
def test_mistakes_are_told_with_file_and_line(tmp_path, line, message):
    first = b'{"prompt": "fine"}\n'
    with pytest.raises(DataError, match=f"a.jsonl:2: .*{message}") as raised:
        read(tmp_path / "a.jsonl", first + (line if isinstance(line, bytes) else line.encode()))
    assert "Traceback" not in str(raised.value)


def test_missing_and_empty_files_are_named(tmp_path):
    with pytest.raises(DataError, match="none.jsonl: must be a readable text file"):
        list(read_json_lines(str(tmp_path / "none.jsonl")))
    with pytest.raises(DataError, match="a.txt: must hold prompts. Received: an empty file"):
        read(tmp_path / "a.txt", "")


def test_a_vocabulary_larger_than_the_models_is_refused():
    section = SimpleNamespace(
        tokenizer_type="ByteTokenizer", vocab_file=None, encoder_file=None, eos_id=None
    )
    assert section_tokenizer(section, 257).vocab_size == 257
    with pytest.raises(ConfigError, match="at most the 256 tokens of the model"):
        section_tokenizer(section, 256)
    section.eos_id = 257
    with pytest.raises(ConfigError, match="eos_id: must be 256, which ends a text"):
        section_tokenizer(section, 257)
