"""Tests of reading prompts and JSON lines: what is read, and how mistakes are reported."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.data.prompts import read_prompts, section_tokenizer
from modelzoo.common.files.json_text import read_json_lines
from modelzoo.common.tokenizers.tokenizers import ByteTokenizer
from tests.messages import names


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
    with pytest.raises(DataError) as error:
        read(tmp_path / "a.txt", f"one\n{blank}\ntwo\n")
    assert names(error.value, "a.txt:2", repr(blank))
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
    "line, facts",
    [
        *((line, ("must be JSON",)) for line in ("{", "[" * 5000)),
        ("[1]", ("object",)),
        ('{"prompt": 3}', ("prompt", "Received: 3")),
        ('{"question": "a"}', ("prompt", "question")),
        (r'{"prompt": "\ud800"}', ("characters",)),
        (r'{"prompt": "a", "x": ["\ud800"]}', ("characters",)),
        (r'{"prompt": "a", "\ud800": 1}', ("characters",)),
        ('{"prompt": ""}', ("a token",)),
        ('{"prompt_tokens": []}', ("a token",)),
        ('{"text": "a", "prompt_tokens": [1]}', ("text", "prompt_tokens")),
        ('{"text": "a", "prompt": "b"}', ("prompt", "text")),
        ('{"prompt": "a", "reference": 3}', ("reference", 3)),
        ('{"prompt": "a", "sample": 1, "tokens": 2}', ("Received: sample, tokens",)),
        ('{"prompt_tokens": ["a"]}', ("prompt_tokens", "'a'")),
        ('{"prompt_tokens": [NaN]}', ("prompt_tokens", "nan")),
        ('{"prompt_tokens": [1' + 23 * "0" + "]}", ("prompt_tokens", 2147483648)),
        ('{"prompt_tokens": [257]}', ("0 to 256", 257)),
        ('{"prompt": "a", "score": Infinity}', ("score", "inf")),
        ('{"prompt": "a", "s": [1, {"t": NaN}]}', ("s", "nan")),
        ('{"prompt": NaN}', ("prompt", "nan")),
        ('{"prompt": "12345678901234567890"}', (20,)),
        (b'{"prompt": "\xff"}', ("UTF-8",)),
    ],
)
def test_mistakes_are_reported_with_file_and_line(tmp_path, line, facts):
    first = b'{"prompt": "fine"}\n'
    with pytest.raises(DataError) as error:
        read(tmp_path / "a.jsonl", first + (line if isinstance(line, bytes) else line.encode()))
    assert names(error.value, "a.jsonl:2: ", *facts)


def test_missing_and_empty_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl"):
        list(read_json_lines(str(tmp_path / "none.jsonl")))
    with pytest.raises(DataError, match=r"a\.txt: .* an empty file"):
        read(tmp_path / "a.txt", "")


def test_a_vocabulary_larger_than_the_models_is_refused():
    section = SimpleNamespace(
        tokenizer_type="ByteTokenizer", vocab_file=None, encoder_file=None, eos_id=None
    )
    assert section_tokenizer(section, 257).vocab_size == 257
    for eos_id, vocab_size in ((None, 256), (257, 257)):
        section.eos_id = eos_id
        with pytest.raises(ConfigError) as error:
            section_tokenizer(section, vocab_size)
        assert names(error.value, "eos_id" if eos_id else "tokenizer_type", 256)
