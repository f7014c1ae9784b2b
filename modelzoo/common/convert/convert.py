"""Converts whole checkpoints between other programs and this zoo, a tensor at a time.

programs.py knows the architectures; no model is built. Optimizer state is not converted: a
converted checkpoint contains weights and the global step.
"""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from cerebras_tf.api import whole_folder
from cerebras_tf.errors import CheckpointError, ConfigError
from modelzoo.common.config import registry
from modelzoo.common.config.model_sections import count_lines
from modelzoo.common.config.params import load_params, params_from_dict
from modelzoo.common.convert.folders import find_carried, has_tokenizer
from modelzoo.common.convert.hugging_face import ASSUMED, WRITTEN
from modelzoo.common.convert.layout import Conversion, match_ours, match_theirs
from modelzoo.common.convert.programs import PROGRAMS
from modelzoo.common.convert.tensorflow_checkpoint import (
    GLOBAL_STEP,
    STATE,
    TensorFlowReader,
    write_tensorflow,
)
from modelzoo.common.data.prepared import known_labels
from modelzoo.common.files.path_advice import advice_on_path
from modelzoo.common.model_dir.folder import TRAINED_ON
from modelzoo.common.model_dir.source_files import CONFIG, GENERATION_CONFIG, find_source
from modelzoo.common.tokenizers.tokenizer_files import lower_cases, word_pieces_of

PARAMS = "params.yaml"
_HEADER = """\
# A converted model. Its own are the section model, vocab_size and max_sequence_length; data_dir,
# batch_size, optimizer and runconfig are placeholders to replace before training.
"""


def to_tensorflow(source, output, program="hugging_face", overwrite=False, advance=None):
    """Converts another program's model into a TensorFlow checkpoint with a params.yaml.

    Args:
        advance: called after every tensor with its number of weights and that of the model.

    Returns:
        A Conversion.

    Raises:
        CheckpointError: the model is damaged, does not fit its configuration, or the disk is too
            small; or a file that goes with it cannot be read.
        ConfigError: its configuration has no counterpart here.
    """
    program = PROGRAMS[program]
    reader = program.open(source)
    architecture, tree, layout = describe(program, reader)
    names = match_theirs(reader, layout, architecture.canonical)
    carried = find_carried(reader.folder, program.carried, is_theirs=True)
    tree = _with_text(tree, output, carried)
    words = {}
    if architecture.model_name.startswith("bert"):
        words = _words_of(reader.folder)
        tree = _with_words(tree, output, reader.folder, words)
    _check_copies(reader, layout, names)

    def tensors():
        for link in layout.links:
            parts = link.form.to_ours(reader.read(names[link.theirs]))
            for name in link.ours:
                yield name, parts.pop(0)  # keeps nothing that was written
            _tell(advance, link, layout.weights)

    name = f"model.ckpt-{reader.global_step}"
    texts = {PARAMS: _HEADER + yaml.safe_dump(tree, sort_keys=False)}
    texts |= architecture.files(reader.config) | words
    patterns = (f"{name}.*", *program.carried, *carried.tokenizer, TRAINED_ON, *texts, STATE)
    patterns = tuple(dict.fromkeys(patterns))
    with whole_folder(output, patterns, overwrite) as folder:
        _check_disk(output, 4 * layout.weights)
        write_tensorflow(folder, name, tensors(), reader.global_step)
        for file_name, text in texts.items():
            (folder / file_name).write_text(text, encoding="utf-8")
        _copy(carried, folder)
    dropped = sorted(set(reader.shapes) - set(names.values()) - {GLOBAL_STEP})
    return _conversion(layout, str(Path(output) / name), dropped, carried)


def from_tensorflow(
    source,
    output,
    program="hugging_face",
    params_path=None,
    config_from=None,
    dtype="float32",
    max_shard_bytes=None,
    overwrite=False,
    advance=None,
):
    """Converts a TensorFlow checkpoint of this zoo into another program's model.

    Args:
        source: prefix of the checkpoint, or its folder.
        params_path: the model's YAML; None takes params.yaml next to the checkpoint.
        config_from: folder of the model that ours began as, for what our YAML lacks, such as
            token ids, generation_config.json and the tokenizer; None takes the checkpoint's folder,
            or the one that its training started from.
        dtype: type of the weights there: float32, float16 or bfloat16.
        max_shard_bytes: largest size of a file; google_bert has None, others' is SHARD_BYTES.

    Returns:
        A Conversion.

    Raises:
        CheckpointError: the checkpoint is damaged, or does not fit its parameters; or a file that
            goes with it cannot be read.
        ConfigError: the parameters have no counterpart there.
    """
    program = PROGRAMS[program]
    program.check(dtype, max_shard_bytes)
    reader = TensorFlowReader(source)
    params_path = str(params_path or reader.folder / PARAMS)
    params = _with_labels_near(params_path)
    architecture = program.architecture_for(params, params_path)
    layout = architecture.layout(params).without_groups(reader.shapes)
    origin = _origin(config_from, program) if config_from else find_source(reader.folder)
    origin = origin or reader.folder
    config = architecture.config(params, params_path, reader.shapes)
    predicts_next = ASSUMED[0] in config  # the carried config.json of a BERT may have it as well
    config = program.completed(config, origin)
    dropped = match_ours(reader, layout)
    carried = find_carried(origin, program.carried)

    def tensors():
        for link in layout.links:
            parts = [np.asarray(reader.read(name), np.float32) for name in link.ours]
            yield link.theirs, link.form.to_theirs(parts)
            _tell(advance, link, layout.weights)

    shapes = {link.theirs: link.shape for link in layout.links}
    patterns = (*carried.tokenizer, *program.written)
    with whole_folder(output, patterns, overwrite) as folder:
        _copy(carried, folder)
        step = reader.global_step
        program.write(folder, config, shapes, tensors(), step, dtype, max_shard_bytes)
    missing = _missing(config, origin, carried, predicts_next, params) if program.carried else ()
    dropped = sorted({*dropped} - {GLOBAL_STEP})
    return _conversion(layout, str(output), dropped, carried, missing)


def _with_labels_near(params_path):
    """Loads params, with the label_vocab_file next to their file if their own does not exist."""
    params, folder = load_params(params_path), Path(params_path).parent
    path = getattr(params.train_input, "label_vocab_file", None)
    if path is None or Path(path).exists() or not (folder / Path(path).name).exists():
        return params
    near = replace(params.train_input, label_vocab_file=str(folder / Path(path).name))
    return replace(params, train_input=near)


def _missing(config, origin, carried, predicts_next, params):
    """Returns what of another program's model is neither in our YAML nor among its files."""
    names, missing = {path.name for path in carried.paths}, []
    if "id2label" in config and known_labels(params.train_input) is None:
        missing.append(f"names of labels (assumed: {', '.join(config['id2label'].values())})")
    if predicts_next and CONFIG not in names:
        values = ", ".join(f"{key} {config[key]}" for key in ASSUMED)
        missing.append(f"token ids (assumed: {values})")
    if predicts_next and GENERATION_CONFIG not in names:
        missing.append(GENERATION_CONFIG)
    if not carried.tokenizer:
        missing.append("files of a tokenizer")
    return tuple(f"{name} in {origin}" for name in missing)


def describe(program, reader):
    """Finds out what model a reader of another program holds.

    Returns:
        Its Architecture, the nested dictionary of our YAML, and its Layout.
    """
    architecture = program.architecture_of(reader)
    names = {architecture.canonical(name) for name in reader.shapes}
    tree = architecture.tree(reader.config, reader.config_path, names)
    cls = registry.params_class(architecture.model_name, where=reader.config_path)
    try:
        params = params_from_dict(cls, tree, where=f"{architecture.model_name} of it")
    except ConfigError as error:
        raise ConfigError(
            f"{reader.config_path}: must describe a model that {architecture.model_name} supports. "
            f"Received: an unsupported configuration.\n{error}"
        ) from error
    return architecture, tree, architecture.layout(params).without_groups(names)


def _origin(folder, program):
    """Returns the folder of --config_from, which holds something that is carried over."""
    if not Path(folder).is_dir():
        advice = advice_on_path(folder, "Use the folder of the original model.")
        raise ConfigError(f"--config_from: must be a folder. Received: {folder}. {advice}")
    if not find_carried(folder, program.carried).paths:
        raise ConfigError(
            "--config_from: must contain "
            f"{' or '.join((*program.carried, 'files of a tokenizer'))}. Received: {folder}, which "
            "has none. Use the folder of the original model, or remove it."
        )
    return Path(folder)


def _with_text(tree, output, carried):
    """Returns our YAML's dictionary with the tokenizer that is copied, for training on text."""
    section = tree["train_input"]
    if section["data_processor"] != "GptTfRecordsProcessor" or not has_tokenizer(carried):
        return tree
    # An absolute path, because relative ones are looked up in the current folder first.
    text = {"data_processor": "GptTextDataProcessor", "tokenizer": str(Path(output).absolute())}
    evaluation = {"data_processor": text["data_processor"], "batch_size": section["batch_size"]}
    runconfig = {**tree["runconfig"], "save_summary_steps": 10}
    return {
        **tree,
        "train_input": {**section, **text},
        "eval_input": evaluation,
        "runconfig": runconfig,
    }


_WORDS = "vocab.txt"
_LOWER_CASE_KEYS = {
    "TsvDataProcessor": "do_lower",
    "QuestionAnsweringDataProcessor": "do_lower_case",
}


def _words_of(folder):
    """Returns a vocab.txt by its name if a WordPiece tokenizer.json comes without one, else {}."""
    tokens = None if (folder / _WORDS).is_file() else word_pieces_of(folder)
    return {_WORDS: "".join(f"{token}\n" for token in tokens)} if tokens else {}


def _with_words(tree, output, folder, words):
    """Returns our YAML's dictionary with the vocabulary that is written, for a fine-tuned BERT."""
    section, lower_case = dict(tree["train_input"]), lower_cases(folder)
    count = words[_WORDS].count("\n") if words else count_lines(folder / _WORDS)
    if "vocab_file" in section and count == section["vocab_size"]:
        section["vocab_file"] = str(Path(output, _WORDS).absolute())
    if name := section.get("label_vocab_file"):
        section["label_vocab_file"] = str(Path(output, name).absolute())
    if (key := _LOWER_CASE_KEYS.get(section["data_processor"])) and lower_case is not None:
        section[key] = lower_case
    return {**tree, "train_input": section}


def _copy(carried, target):
    for path in carried.paths:
        shutil.copyfile(path, target / path.name)


def _check_copies(reader, layout, names):
    for copy, of in layout.copies.items():
        if copy in names:
            first, second = reader.read(names[copy]), reader.read(names[of])
            if not np.array_equal(first, second, equal_nan=True):
                raise CheckpointError(
                    f"{reader.where(names[copy])}: tensor {copy} must equal {of}, which "
                    f"{reader.config_path} ties it to. Received: other values. Set "
                    "tie_word_embeddings to false there if the model has both."
                )


def _check_disk(folder, need):
    """Raises CheckpointError where a folder's disk has less than `need` bytes."""
    there = Path(folder).absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if need > free:
        raise CheckpointError(
            f"{folder}: {need / 1e9:.3g} GB must be free for the weights in float32. Received: "
            f"{free / 1e9:.3g} GB. Free disk space, or use another folder."
        )


def _tell(advance, link, total):
    if advance is not None:
        advance(math.prod(link.shape), total)


def _conversion(layout, path, dropped, carried, missing=()):
    return Conversion(
        len(layout.links), layout.weights, path, tuple(dropped), carried.left, missing
    )


STDDEV = 0.02  # GPT-2's


def write_random_model(
    params,
    where,
    output,
    dtype="float32",
    seed=0,
    max_shard_bytes=2 * 10**9,
    overwrite=False,
    advance=None,
):
    """Writes a folder that transformers, and our converter, load.

    Matrices are normal with deviation STDDEV, scales of layer norms are 1, all else is 0.

    Returns:
        A Conversion.
    """
    program = PROGRAMS["hugging_face"]
    architecture = program.architecture_for(params, where)
    links = architecture.layout(params).links
    names = {name for link in links for name in link.ours}
    config = architecture.config(params, where, names)
    shapes = {link.theirs: link.shape for link in links}
    random = np.random.default_rng(seed)

    def tensors():
        for name, shape in shapes.items():
            yield name, _content(name, shape, random)
            if advance is not None:
                advance(math.prod(shape), weights)

    weights = sum(map(math.prod, shapes.values()))
    with whole_folder(output, WRITTEN, overwrite) as folder:
        program.write(folder, config, shapes, tensors(), 0, dtype, max_shard_bytes)
    return Conversion(len(shapes), weights, str(output))


def _content(name, shape, random):
    if len(shape) > 1:
        content = random.standard_normal(shape, np.float32)
        content *= np.float32(STDDEV)
        return content
    return np.full(shape, 1.0 if name.endswith("weight") else 0.0, np.float32)
