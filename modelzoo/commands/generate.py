"""Continues prompts with a trained language model, and prints the text as it is generated.

For example::

    cerebras-tf generate -o model_dir/gpt3_tiny --prompt "KING RICHARD:"
    echo "My gracious lord," | cerebras-tf generate -o model_dir/gpt3_tiny --do_sample false
    cerebras-tf generate -o model_dir/gpt3_tiny --interactive

The params file and the tokenizer are found in the model folder. `cerebras-tf predict` writes
completions of many prompts to a file.
"""

import argparse
import secrets
import sys
from pathlib import Path

from cerebras_tf.api import any_int, any_number, positive_int, seed_int
from cerebras_tf.errors import ConfigError
from modelzoo.common.config import registry
from modelzoo.common.config.input_sections import GptPromptsInput, LanguageModelParams
from modelzoo.common.config.params import load_params, params_from_dict
from modelzoo.common.data.model_tokenizer import load_model_tokenizer
from modelzoo.common.data.prompts import STDIN, make_prompt, read_prompts, read_stdin, typed_lines
from modelzoo.common.model_dir import folder as model_dir
from modelzoo.common.tokenizers import tokenizers
from modelzoo.common.train.arguments import add_params_argument
from modelzoo.common.train.console import log_loading, quiet_logging

WORDS = {"true": True, "false": False}
PARAMS = "params.yaml"


def add_arguments(parser):
    """Adds the command's arguments."""
    add = parser.add_argument
    add("-o", "--model_dir", help="folder of the checkpoint, with its params.yaml")
    add_params_argument(parser, "params file (default: params.yaml in model_dir)", required=False)
    add("--checkpoint_path", help="checkpoint, or folder of checkpoints (default: model_dir)")
    text = "text to continue (can be repeated; default: standard input)"
    add("--prompt", type=str, action="append", default=[], metavar="TEXT", help=text)
    text = "file of prompts: one per line, or .jsonl with the key prompt or text"
    add("--prompt_file", metavar="FILE", help=text)
    text = "read prompts from the keyboard, one per line; the model stays loaded"
    add("--interactive", action="store_true", help=text)
    text = "tokens to generate; the model continues beyond its number of positions"
    add("--max_new_tokens", type=positive_int, default=200, metavar="N", help=text)
    text = "answer the prompt as a chat, with the chat template of a transformers model"
    add("--chat", action="store_true", help=text)
    add("--system", metavar="TEXT", help="system message of a chat")
    text = "false: always take the most probable token"
    add("--do_sample", type=truth, nargs="?", const=True, default=True, metavar="BOOL", help=text)
    text = "divisor of the logits; lower is more conservative (default: 0.8)"
    add("--temperature", type=any_number, metavar="T", help=text)
    text = "sample from the K most probable tokens (default: all)"
    add("--top_k", type=positive_int, metavar="K", help=text)
    text = "sample from the smallest set of tokens with total probability P (default: 1)"
    add("--top_p", type=any_number, metavar="P", help=text)
    text = "divisor of the logits of earlier tokens; 1 has no effect"
    add("--repetition_penalty", type=any_number, default=1.0, metavar="X", help=text)
    add("--num_return_sequences", type=positive_int, default=1, metavar="N", help="per prompt")
    text = "end before one of these texts"
    add("--stop_strings", type=str, nargs="+", default=[], metavar="TEXT", help=text)
    add("--seed", type=seed_int, help="of sampling (default: random)")
    text = f"{', '.join(tokenizers.KINDS)} (default: found with the model)"
    add("--tokenizer_type", choices=tokenizers.KINDS, metavar="KIND", help=text)
    add("--vocab_file", help="merges of GPT-2 (vocab.bpe) or tokenizer.json")
    add("--encoder_file", help="vocabulary of GPT-2 (encoder.json)")
    add("--eos_id", type=any_int, help="id of the end-of-text token (default: the tokenizer's)")
    add("--device", help="/cpu:0 to run the model on the host (default: on the wafer)")
    parser.epilog = f"""examples:
  {parser.prog} -o model_dir/mine --prompt "Once upon a time"
  {parser.prog} -o model_dir/mine --interactive --temperature 0.5
  {parser.prog} -o model_dir/mine --do_sample false < prompt.txt"""


def truth(text):
    """Reads true or false; an argparse type."""
    if text.lower() not in WORDS:
        raise argparse.ArgumentTypeError(f"must be true or false. Received: {text!r}.")
    return WORDS[text.lower()]


def run(args):
    """Completes all prompts."""
    sampling = sampling_section(args)
    if bool(args.prompt) + bool(args.prompt_file) + args.interactive > 1:
        raise ConfigError(
            "--prompt, --prompt_file, --interactive: only one may be set. Received: several. "
            "Remove the others."
        )
    params = read_params(args)
    folder = params.runconfig.model_dir
    if args.system and not args.chat:
        raise ConfigError("--system: has no effect without --chat. Set both, or remove it.")
    engine_loading = f"generate: {params.model_name} of {folder}"
    if params.model_name in registry.TORCH_MODELS:
        log_loading(engine_loading, "PyTorch")
        registry.load_engine(params.model_name).generate(args, params)
        return
    if args.chat:
        raise ConfigError(
            "--chat: the model must be one of transformers, hf_causal_lm. Received: "
            f"{params.model_name}. Remove it."
        )
    tokenizer = load_model_tokenizer(params, args)
    params = params.with_checkpoint(args.checkpoint_path)
    prompts = read_all_prompts(args, tokenizer, params.train_input.vocab_size)
    log_loading(engine_loading)
    import tensorflow.compat.v1 as tf

    from modelzoo.common.generate.console import complete
    from modelzoo.common.generate.prediction import max_length, open_decoder
    from modelzoo.common.model_dir.checkpoint_files import chosen_checkpoint
    from modelzoo.common.train.estimator import make_estimator

    quiet_logging(tf)
    tf.logging.set_verbosity(tf.logging.WARN)  # lines about compiled shapes would cut the text
    path = chosen_checkpoint(params.runconfig)
    model_dir.check_device(params.runconfig.device)
    model, _ = registry.load_model(params.model_name)
    use_cs = not params.runconfig.device
    estimator = make_estimator(model.model_fn, params, use_cs)
    with open_decoder(estimator, params, path, use_cs) as decoder:
        complete(decoder, tokenizer, prompts, sampling, max_length(params))


def sampling_section(args):
    """Returns the options of sampling as a GptPromptsInput; refuses those without effect."""
    given = {key: getattr(args, key) for key in ("temperature", "top_k", "top_p")}
    given = {key: value for key, value in given.items() if value is not None}
    if not args.do_sample and given:
        raise ConfigError(
            f"--{next(iter(given))}: has no effect with --do_sample false. Received: "
            f"{next(iter(given.values()))}. Remove one of them."
        )
    section = GptPromptsInput(
        data_processor="GptPromptsProcessor",
        prompt_file="",
        batch_size=1,
        max_new_tokens=args.max_new_tokens,
        num_samples=args.num_return_sequences,
        repetition_penalty=args.repetition_penalty,
        seed=secrets.randbits(32) if args.seed is None else args.seed,
        stop=args.stop_strings,
        **{"temperature": 0.8 if args.do_sample else 0.0, **given},
    )
    names = {"num_samples": "num_return_sequences", "stop": "stop_strings"}
    if section.temperature < 0:
        raise ConfigError(f"--temperature: must be 0 or more. Received: {section.temperature}.")
    for key, problem in section.problems():
        raise ConfigError(f"--{names.get(key, key)}: {problem} Received: {getattr(section, key)}.")
    return section


def read_params(args):
    """Loads the params file, and checks that it is a language model's."""
    if not (args.params or args.model_dir):
        raise ConfigError(
            "--model_dir: must be set, or --params. Received: neither. Set -o to the folder of a "
            "trained model."
        )
    path = Path(args.params or Path(args.model_dir, PARAMS))
    if not args.params and not path.exists() and Path(args.model_dir, "config.json").exists():
        return params_of_folder(args)
    if not args.params and not path.exists():
        raise ConfigError(
            f"{args.model_dir}: must be the folder of a trained model, with {PARAMS}. Received: "
            f"{'a folder' if path.parent.is_dir() else 'a path'} without it. Train first, or set "
            "-p to the params file."
        )
    if not path.exists() and path.suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"--params: must be a params file. Received: {args.params!r}, which does not exist. "
            "Set --prompt for the text to continue, and -o to the folder of the model."
        )
    overrides = {
        "mode": "predict",
        "model_dir": args.model_dir or model_dir.default_model_dir(args.params),
        "checkpoint_path": args.checkpoint_path,
        "device": args.device,
    }
    overrides = {f"runconfig.{key}": value for key, value in overrides.items()}
    params = load_params(path, overrides, settings=args.set)
    if not isinstance(params, LanguageModelParams) and params.model_name != "hf_causal_lm":
        raise ConfigError(
            f"{path}: must be the params file of a model that predicts the next token. "
            f"Received: model_name {params.model_name}. Use one of gpt3, gptj or hf_causal_lm."
        )
    return params


def params_of_folder(args):
    """Returns params for a folder that transformers' save_pretrained wrote."""
    folder = args.model_dir
    text = {"data_processor": "GptTextDataProcessor", "max_sequence_length": 2, "batch_size": 1}
    tree = {
        "model_name": "hf_causal_lm",
        "model": {"pretrained": folder},
        "train_input": {**text, "tokenizer": folder},
        "optimizer": {"optimizer_type": "sgd", "learning_rate": 0.0},
        "runconfig": {"mode": "predict", "model_dir": folder, "device": args.device},
    }
    for key, value in args.set:
        raise ConfigError(f"--set {key}: must be used with a params file. Received: {value}.")
    return params_from_dict(registry.params_class("hf_causal_lm", folder), tree, folder)


def read_all_prompts(args, tokenizer, vocab_size):
    """Returns an iterable of Prompt; those of --interactive are read when they are needed."""
    if args.prompt_file:
        return read_prompts(args.prompt_file, tokenizer, vocab_size, None)
    if args.prompt:
        return [make_prompt(text, "--prompt", tokenizer) for text in args.prompt]
    if args.interactive or sys.stdin.isatty():
        return (make_prompt(text, STDIN, tokenizer) for text in typed_lines())
    return [make_prompt(read_stdin(), STDIN, tokenizer)]
