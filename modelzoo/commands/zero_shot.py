"""Evaluates a trained language model on a task it was not trained on, from a jsonl file.

For example::

    cerebras-tf zero_shot -p configs/params_gpt2_small.yaml \\
        -o model_dir/gpt2_small --tasks lambada.jsonl --mode last_word \\
        --tokenizer_type GPT2Tokenizer --encoder_file encoder.json --vocab_file vocab.bpe

It only reads its arguments; ``modelzoo/common/evaluate`` does the work.
"""

import os
from pathlib import Path

from cerebras_tf.api import any_int, counted, positive_int, progress_bar
from cerebras_tf.errors import ConfigError
from modelzoo.common.config import registry
from modelzoo.common.config.input_sections import LanguageModelParams
from modelzoo.common.config.params import load_params
from modelzoo.common.data.model_tokenizer import load_model_tokenizer
from modelzoo.common.evaluate.tasks import TASKS, read_task
from modelzoo.common.model_dir import folder as model_dir
from modelzoo.common.tokenizers import tokenizers
from modelzoo.common.train.arguments import add_params_argument
from modelzoo.common.train.console import quiet_logging


def add_arguments(parser):
    """Adds the command's arguments."""
    add = parser.add_argument
    add_params_argument(parser, "params file of the model")
    add("-o", "--model_dir", help="folder of checkpoints and results")
    add("--checkpoint_path", help="checkpoint, or folder of checkpoints (default: model_dir)")
    add("--tasks", nargs="+", required=True, help="jsonl files, one a task")
    text = (
        "what the rows of a task are: questions with choices, or texts whose last word is guessed"
    )
    add("--mode", choices=list(TASKS), default="multiple_choice", help=text)
    text = f"{', '.join(tokenizers.KINDS)} (default: found with the model)"
    add("--tokenizer_type", choices=tokenizers.KINDS, metavar="KIND", help=text)
    add("--vocab_file", help="merges of GPT-2 (vocab.bpe) or tokenizer.json")
    add("--encoder_file", help="vocabulary of GPT-2 (encoder.json)")
    add("--eos_id", type=any_int, help="id of the end-of-text token (default: the tokenizer's)")
    add("--batch_size", type=positive_int, default=8, help="continuations scored at once")
    add("--device", help="/cpu:0 to run the model on the host (default: on the wafer)")


def run(args):
    """Evaluates all tasks."""
    names = [Path(path).stem for path in args.tasks]
    if len(set(names)) < len(names):
        raise ConfigError(
            "--tasks: file names must be unique, because results have the same names. Received: "
            f"{', '.join(names)}. Rename a file, or run them separately."
        )
    tasks = {name: read_task(path, args.mode) for name, path in zip(names, args.tasks)}
    folder = args.model_dir or model_dir.default_model_dir(args.params)
    given = {
        "mode": "predict",
        "model_dir": folder,
        "checkpoint_path": args.checkpoint_path,
        "device": args.device,
    }
    overrides = {f"runconfig.{key}": value for key, value in given.items()}
    params = load_params(args.params, overrides, settings=args.set)
    if params.model_name == "hf_causal_lm":
        params = params.with_checkpoint(args.checkpoint_path)
        engine = registry.load_engine(params.model_name)
        for found in engine.zero_shot(args, params, tasks):
            print_result(*found)
        return
    if not isinstance(params, LanguageModelParams):
        raise ConfigError(
            f"{args.params}: must be the params file of a model that predicts the next token. "
            f"Received: model_name {params.model_name}. Use one of gpt3, gptj or hf_causal_lm."
        )
    tokenizer = load_model_tokenizer(params, args)
    params = params.with_checkpoint(args.checkpoint_path)
    import tensorflow.compat.v1 as tf

    from modelzoo.common.evaluate.scoring import ModelSession
    from modelzoo.common.evaluate.tasks import evaluate, write_results
    from modelzoo.common.model_dir.checkpoint_files import chosen_checkpoint
    from modelzoo.common.train.estimator import make_estimator

    quiet_logging(tf)
    path = chosen_checkpoint(params.runconfig)
    model_dir.check_device(params.runconfig.device)
    model, _ = registry.load_model(params.model_name)
    estimator = make_estimator(model.model_fn, params, not params.runconfig.device)
    for name, rows in tasks.items():
        total = sum(len(row.texts()) for row in rows)
        with (
            ModelSession(estimator, params, path, tokenizer, args.batch_size) as session,
            progress_bar(total, "text", text=name) as bar,
        ):
            results, scores = evaluate(session, rows, bar.update)
        step = tf.train.load_variable(path, "global_step")
        target = os.path.join(folder, "zero_shot")
        written, _ = write_results(target, name, step, results, scores)
        print_result(name, len(rows), scores, written)


def print_result(name, count, scores, written):
    """Prints the scores of a task."""
    words = ", ".join(f"{key} {value:.4f}" for key, value in scores.items())
    print(f"{name}: {counted(count, 'row')}, {words}; results in {written}")
