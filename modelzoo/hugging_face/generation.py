"""Continues prompts and chats on the console with transformers' generate()."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from cerebras_tf.errors import ConfigError
from modelzoo.common.data.prompts import TEXT_KEYS, is_json_lines, read_stdin, typed_lines
from modelzoo.common.files.json_text import read_json_lines, text_of
from modelzoo.common.files.text_lines import read_lines
from modelzoo.common.generate.transformers_decoder import CACHE, on_wafer
from modelzoo.common.tokenizers.tokenizers import ByteTokenizer
from modelzoo.common.train import torch_engine
from modelzoo.common.train.console import logger
from modelzoo.hugging_face import chat
from modelzoo.hugging_face.model import LoadedModel


class Bytes:
    """A tokenizer of bytes, as far as generation needs one of transformers."""

    name_or_path, chat_template = "the bytes", None
    eos_token_id = pad_token_id = ByteTokenizer.eos_id

    def __call__(self, text, **_):
        return {"input_ids": ByteTokenizer().encode(text).tolist()}

    def decode(self, ids, **_):
        """Returns the text of tokens."""
        return ByteTokenizer().decode(ids)


def run(args, params):
    """Generates text for the prompts of a command line; see commands/generate.py."""
    logger().setLevel("WARNING")  # lines of progress would cut the text
    transformers.logging.set_verbosity_error()
    tokenizer = find_tokenizer(params)
    if args.chat and not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            f"--chat: the tokenizer must have a chat template. Received: {tokenizer.name_or_path}, "
            "without one. Remove --chat, or use a chat model."
        )
    with model_to_generate(params, torch_engine.chosen(params)) as module:
        if args.chat and args.interactive:
            talk(args, module, tokenizer)
            return
        for text in read_prompts(args):
            messages = [{"role": "user", "content": text}]
            complete(args, module, tokenizer, messages if args.chat else text)


@contextlib.contextmanager
def model_to_generate(params, checkpoint):
    """Within: a module whose `generate` runs on the wafer, or with runconfig.device by PyTorch."""
    model = LoadedModel(params)
    module = model.module.eval().requires_grad_(False)
    if params.runconfig.device:
        model.load(checkpoint)
        yield module
        return
    weights, settings = model.weights(checkpoint), torch_engine.settings(params, alone=True)
    with on_wafer(module, settings, weights, torch_engine.stored_types(module, weights)):
        yield module


def find_tokenizer(params):
    """Returns the tokenizer of training, or that of model.pretrained; bytes without any."""
    section = params.train_input
    folder = getattr(section, "tokenizer", None) or params.model.pretrained
    if folder is None:
        return Bytes()
    path = Path(folder)
    if path.is_file():
        return transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    return chat.load_tokenizer(folder)


def read_prompts(args):
    """Yields the prompts of a command line, a file or standard input."""
    if args.prompt_file and is_json_lines(args.prompt_file):
        for where, row in read_json_lines(args.prompt_file):
            yield text_of(row, next((key for key in TEXT_KEYS if key in row), TEXT_KEYS[0]), where)
    elif args.prompt_file:
        yield from read_lines(args.prompt_file)
    elif args.prompt:
        yield from args.prompt
    elif args.interactive or sys.stdin.isatty():
        yield from typed_lines()
    else:
        yield read_stdin()


def talk(args, module, tokenizer):
    """Answers the lines of standard input; each answer sees the conversation before it."""
    messages = [{"role": "system", "content": args.system}] if args.system else []
    for text in typed_lines():
        messages.append({"role": "user", "content": text})
        answer = complete(args, module, tokenizer, messages)
        messages.append({"role": "assistant", "content": answer})


def complete(args, module, tokenizer, prompt):
    """Generates completions of a prompt, and prints the text while it is made.

    Args:
        prompt: a text, or the messages of a conversation.

    Returns:
        The text of the first completion.
    """
    if isinstance(prompt, str):
        ids = list(tokenizer(prompt)["input_ids"])
        if not ids:
            ids = [tokenizer.bos_token_id or tokenizer.eos_token_id]
    else:
        if args.system and prompt[0]["role"] != "system":
            prompt = [{"role": "system", "content": args.system}, *prompt]
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)
        ids = list(ids["input_ids"])
    first = ""
    for number in range(args.num_return_sequences):
        if args.seed is not None:
            torch.manual_seed(args.seed + number)
        streamer = Streamer(tokenizer, skip_prompt=not isinstance(prompt, str))
        found = module.generate(
            torch.tensor([ids]), streamer=streamer, **options(args, module, tokenizer)
        )
        text = tokenizer.decode(found[0, len(ids) :].tolist(), skip_special_tokens=True)
        first = first or text
    return first


class Streamer(transformers.TextStreamer):
    """Prints text while it is generated; special tokens are left out."""

    def __init__(self, tokenizer, skip_prompt):
        super().__init__(tokenizer, skip_prompt=skip_prompt, skip_special_tokens=True)


def options(args, module, tokenizer):
    """Returns the arguments of generate() that a command line asks for."""
    found: dict[str, Any] = {
        CACHE: transformers.DynamicCache(),
        "max_new_tokens": args.max_new_tokens,
        "do_sample": args.do_sample,
        "repetition_penalty": args.repetition_penalty,
    }
    if args.do_sample:
        found["temperature"] = 0.8 if args.temperature is None else args.temperature
        found["top_k"] = args.top_k or 0
        found["top_p"] = 1.0 if args.top_p is None else args.top_p
    if args.stop_strings:
        if isinstance(tokenizer, Bytes):
            raise ConfigError(
                "--stop_strings: the model must have a tokenizer of transformers. Received: bytes. "
                "Remove the option."
            )
        found |= {"stop_strings": args.stop_strings, "tokenizer": tokenizer}
    own = module.generation_config
    ends = own.eos_token_id if own.eos_token_id is not None else []
    ends = {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None}
    vocab_size = module.config.get_text_config().vocab_size
    found["eos_token_id"] = sorted(end for end in ends if end < vocab_size) or None
    pad_id = tokenizer.pad_token_id
    found["pad_token_id"] = (found["eos_token_id"] or [0])[0] if pad_id is None else pad_id
    return found
