"""Converts checkpoints between Hugging Face, Google's BERT and TensorFlow, and compares them.

For example::

    cerebras-tf convert to_tf EleutherAI/gpt-j-6B model_dir/gptj_6b
    cerebras-tf convert to_tf uncased_L-12_H-768_A-12 model_dir/bert --program google_bert
    cerebras-tf convert from_tf model_dir/gptj_6b gpt-j-6B-trained
    cerebras-tf convert verify gpt-j-6B-trained model_dir/gptj_6b --logits
    cerebras-tf convert renumber model_dir/first model_dir/second 38000
    cerebras-tf convert random -p params_gptj_6b.yaml gpt-j-6B-random --dtype bfloat16

It parses arguments and shows progress; ``modelzoo/common/convert`` does the work.
"""

import os
import shlex
import time

from cerebras_tf.api import WEIGHT_TYPES, gigabytes, progress_bar, seed_int, step_int
from cerebras_tf.errors import ConfigError
from modelzoo.common.config.params import load_params
from modelzoo.common.convert.convert import from_tensorflow, to_tensorflow, write_random_model
from modelzoo.common.convert.hugging_face import SHARD_BYTES
from modelzoo.common.convert.programs import PROGRAMS
from modelzoo.common.convert.tensorflow_checkpoint import renumber
from modelzoo.common.convert.verify import (
    TOLERANCE,
    compare_logits,
    require_packages,
    verify_weights,
)
from modelzoo.common.data.prepared import known_labels
from modelzoo.common.fine_tuning.tag_labels import LATER_PIECE
from modelzoo.common.tokenizers.tokenizer_files import lower_cases
from modelzoo.common.train.arguments import add_params_argument

OPERANDS = {
    "to_tf": {
        "source": "folder of the model; for google_bert also the checkpoint's prefix",
        "output": "folder of the checkpoint",
    },
    "from_tf": {
        "source": "prefix of the checkpoint, or folder: its latest",
        "output": "folder of the model",
    },
    "verify": {
        "source": "folder of the other model",
        "checkpoint": "prefix of the TensorFlow checkpoint, or folder",
    },
    "renumber": {
        "source": "prefix of the checkpoint, or folder: its latest",
        "output": "folder for the renumbered checkpoint",
    },
    "random": {"output": "folder of the model"},
}


def add_arguments(parser, what):
    """Adds the arguments of `what`, one of ACTIONS."""
    add = parser.add_argument
    parser.set_defaults(what=what)
    for name, text in OPERANDS[what].items():
        add(name, help=text)
    if what == "verify":
        add(
            "--logits",
            action="store_true",
            help="also compare the outputs of both models on random tokens",
        )
    else:
        add("--overwrite", action="store_true", help="replace an existing model")
    if what == "renumber":
        add("step", type=step_int, help="its global step")
        return
    if what == "random":
        add_params_argument(parser, "our params file of the model")
        add("--seed", type=seed_int, default=0, help="of the weights (default: 0)")
        add("--dtype", choices=WEIGHT_TYPES, default="float32", help="type of weights there")
        add("--max_shard_gb", type=gigabytes, default=2.0, help="size of a file, GB")
        return
    add("--program", choices=tuple(PROGRAMS), default="hugging_face", help="the other program")
    if what != "to_tf":
        add("-p", "--params", help="params file (default: params.yaml next to the checkpoint)")
        add("--dtype", choices=WEIGHT_TYPES, default="float32", help="type of weights there")
    if what == "from_tf":
        add(
            "--config_from",
            metavar="FOLDER",
            help=(
                "original model, to copy its token ids, generation_config.json and "
                "tokenizer (default: the folder of the checkpoint, or the one it was trained from)"
            ),
        )
        text = f"maximum size of a Hugging Face file, GB (default: {SHARD_BYTES / 1e9:g})"
        add("--max_shard_gb", type=gigabytes, help=text)


def run(args):
    """Converts or compares."""
    # Read when TensorFlow is imported. The pool of oneDNN keeps what was given back to it, several
    # times the largest tensor.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    started = time.monotonic()
    with progress_bar(None, " weights", unit_scale=True, delay=0.1) as bar:  # total comes later

        def advance(weights, total):
            bar.total = total
            bar.update(weights)

        lines = ACTIONS[args.what](args, advance)
    summary, *commands = lines.split("\n")
    print("\n".join([f"{summary} ({time.monotonic() - started:.1f} s)", *commands]))


def convert_to_tf(args, advance):
    """Makes a TensorFlow checkpoint; returns what to print."""
    done = to_tensorflow(args.source, args.output, args.program, args.overwrite, advance)
    text = _summary(done)
    if done.dropped:
        text += f" Left out: {len(done.dropped)} tensors that its outputs do not need, such as "
        text += f"{done.dropped[0]}."
    path = os.path.join(args.output, "params.yaml")
    params = load_params(path)
    data, more = "DATA", ""
    if params.model_name.endswith("token_classifier"):
        data = "DATA/train"
        if LATER_PIECE not in (known_labels(params.train_input) or ()):
            # Records have labels of their own, and the output layer is trained from the beginning.
            more = " --set train_input.label_vocab_file=DATA/label2id.json"
            more += " --set model.num_classes=NUMBER_OF_LABELS"
    places = f"-p {shlex.quote(path)} --checkpoint_path {shlex.quote(args.output)}"
    return (
        f"{text}\n{_preparation(args.output, params)}Train from it: cerebras-tf train {places} "
        f"-o MODEL_DIR --set train_input.data_dir={data}{more}"
    )


# Commands that prepare the data of a BERT.
PREPARATIONS = {
    "bert": "bert --input_dir TEXT",
    "bert.fine_tuning.question_answering": "squad --input_file TRAIN.json",
    "bert.fine_tuning.token_classifier": "ner --data_dir FOLDER",
}


def _preparation(folder, params):
    """Returns how to prepare the data of a model, nothing if it reads them as they are."""
    if params.model_name not in PREPARATIONS:
        return ""
    words = os.path.join(folder, "vocab.txt")
    command = f"cerebras-tf prepare {PREPARATIONS[params.model_name]} --vocab_file "
    command += shlex.quote(words) if os.path.exists(words) else "VOCAB"
    command += f" --max_seq_length {params.train_input.max_sequence_length}"
    if lower_cases(folder):
        command += " --do_lower_case"
    if params.model_name == "bert":
        command += f" --max_predictions_per_seq {params.train_input.max_predictions_per_seq}"
        command += " --mlm_only" if params.model.disable_nsp else ""
    return f"Prepare data: {command} --output_dir DATA\n"


def convert_from_tf(args, advance):
    """Makes the other program's model; returns what to print."""
    done = from_tensorflow(
        args.source,
        args.output,
        args.program,
        args.params,
        args.config_from,
        args.dtype,
        None if args.max_shard_gb is None else int(args.max_shard_gb * 1e9),
        args.overwrite,
        advance,
    )
    return _summary(done)


def _summary(done):
    text = f"{done.tensors} tensors, {done.weights} weights: {done.path}."
    if done.missing:
        text += f" Not found: {'; '.join(done.missing)}. Set --config_from to the folder of the "
        text += "original model, if there is one."
    if done.left:
        text += f" Not copied: {', '.join(done.left)}."
    return text


def verify_both(args, advance):
    """Compares the two; returns what to print."""
    if args.logits and args.program != "hugging_face":
        raise ConfigError(
            f"--logits: must be used with --program hugging_face. Received: {args.program}. "
            "Convert the checkpoint to Hugging Face's format and compare with that."
        )
    if args.logits:
        require_packages()
    count = verify_weights(
        args.source, args.checkpoint, args.program, args.dtype, advance, args.params
    )
    text = f"{count} weights are equal bit for bit."
    if args.logits:
        largest = compare_logits(args.source, args.checkpoint, args.params)
        values = ", ".join(f"{name} by at most {value:.2g}" for name, value in largest.items())
        text += f" Outputs are equal to {TOLERANCE:g}: they differ in {values}."
    return text


def copy_renumbered(args, advance):
    """Copies a checkpoint as that of another step; returns what to print."""
    path = renumber(args.source, args.output, args.step, args.overwrite)
    return f"{path}: as {args.source}."


def write_random(args, advance):
    """Writes a model of random weights; returns what to print."""
    params, size = load_params(args.params, settings=args.set), int(args.max_shard_gb * 1e9)
    done = write_random_model(
        params, args.params, args.output, args.dtype, args.seed, size, args.overwrite, advance
    )
    return _summary(done)


ACTIONS = {
    "to_tf": convert_to_tf,
    "from_tf": convert_from_tf,
    "verify": verify_both,
    "renumber": copy_renumbered,
    "random": write_random,
}
