"""Compares a converted model with its source: weights bit for bit, and outputs."""

import math

import numpy as np

from cerebras_tf.api import rounded_to
from cerebras_tf.errors import CheckpointError, ConfigError
from cerebras_tf.installing import install_peers
from modelzoo.common.config import registry
from modelzoo.common.config.params import load_params
from modelzoo.common.convert.convert import PARAMS
from modelzoo.common.convert.hugging_face import HuggingFaceReader
from modelzoo.common.convert.layout import match_ours, match_theirs
from modelzoo.common.convert.programs import PROGRAMS, architecture_of
from modelzoo.common.convert.tensorflow_checkpoint import TensorFlowReader

_SHOWN = 10


def verify_weights(
    theirs, ours, program="hugging_face", dtype="float32", advance=None, params_path=None
):
    """Compares all weights.

    Args:
        dtype: type of the weights there, to which ours are rounded before they are compared.
        params_path: our YAML; None takes params.yaml next to the checkpoint.

    Returns:
        Number of weights compared.
    """
    program, checkpoint = PROGRAMS[program], TensorFlowReader(ours)
    reader = program.open(theirs)
    params_path = str(params_path or checkpoint.folder / PARAMS)
    params = load_params(params_path)
    architecture = program.architecture_for(params, params_path)
    layout = architecture.layout(params).without_groups(checkpoint.shapes)
    names = match_theirs(reader, layout, architecture.canonical)
    match_ours(checkpoint, layout)
    faults, count = [], 0
    for link in layout.links:
        faults += _differences(link, reader.read(names[link.theirs]), checkpoint, dtype)
        count += math.prod(link.shape)
        if advance is not None:
            advance(math.prod(link.shape), layout.weights)
    if faults:
        more = [f"... and {len(faults) - _SHOWN} more."] if len(faults) > _SHOWN else []
        advice = "Convert again, or set --dtype to that of the other model."
        raise CheckpointError(
            f"{checkpoint.path}: must equal {theirs} bit for bit. Received: {len(faults)} tensors "
            "that differ.\n" + "\n".join([*faults[:_SHOWN], *more, advice])
        )
    return count


def _differences(link, tensor, checkpoint, dtype):
    lines = []
    for name, wanted in zip(link.ours, link.form.to_ours(tensor)):
        found = np.asarray(checkpoint.read(name), np.float32)
        if dtype != "float32":
            found = rounded_to(found, dtype)
        lines += difference(f"{name} ({link.theirs})", found, wanted)
    return lines


def difference(name, found, wanted):
    """Returns a list with one line on how two float32 arrays of one shape differ, or none."""
    bits = [np.ascontiguousarray(array).view(np.uint32) for array in (found, wanted)]
    same = bits[0] == bits[1]
    if same.all():
        return []
    with np.errstate(invalid="ignore"):
        largest = np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max()
    return [f"{name}: {same.size - same.sum()} of {same.size} differ, by up to {largest:.3g}."]


TOLERANCE = 2e-4
_BATCH, _MAX_LENGTH = 2, 64
# What models of transformers return, by our names.
_OUTPUTS = {
    "logits": "logits",
    "prediction_logits": "logits",
    "seq_relationship_logits": "sentence_logits",
    "last_hidden_state": "hidden",
    "pooler_output": "pooled",
    "start_logits": "starts",
    "end_logits": "ends",
}
_ONE_SENTENCE = "BertForNextSentencePrediction"
_PER_TOKEN = ("starts", "ends")  # [B, S], and all of three dimensions


def compare_logits(theirs, ours, params_path=None, seed=0):
    """Compares the outputs of both models on the same random tokens, some of them padding.

    Returns:
        The largest absolute difference by output, over the tokens that are no padding.
    """
    checkpoint = TensorFlowReader(ours)
    params = load_params(str(params_path or checkpoint.folder / "params.yaml"))
    batch = random_batch(params.train_input, seed, HuggingFaceReader(theirs).config)
    expected = their_outputs(theirs, batch)
    found = our_outputs(checkpoint.path, params, batch, expected)
    largest = {}
    for name, value in expected.items():
        difference = np.abs(value - found[name])
        if difference.ndim == 3 or name in _PER_TOKEN:  # where padding does not count
            difference = difference[batch["input_mask"] == 0]
        largest[name] = float(difference.max())
    if not max(largest.values()) <= TOLERANCE:  # NaN is not
        raise CheckpointError(
            f"{checkpoint.path}: must compute what {theirs} computes, to {TOLERANCE:g}. Received: "
            f"{', '.join(f'{name} differ by {value:.3g}' for name, value in largest.items())}. "
            "Compare the weights, or convert again."
        )
    return largest


def random_batch(section, seed, config):
    """Makes tokens, segments and padding.

    Args:
        section: input section, which has the vocabulary's size and the longest sequence.
        config: their configuration. No token is RoBERTa's padding, which it does not count as a
            position; one segment is all there is where it has no more.

    Returns:
        ``input_ids``, ``segment_ids`` and ``input_mask`` (1 where there is padding), all [B, S]
        int32. The last third of the last sequence is padding.
    """
    generator = np.random.default_rng(seed)
    shape = (_BATCH, min(section.max_sequence_length, _MAX_LENGTH))
    mask = np.zeros(shape, np.int32)
    mask[-1, -(shape[1] // 3) :] = 1
    ids = generator.integers(0, section.vocab_size, shape, dtype=np.int32)
    if config.get("model_type") == "roberta":
        padding = config["pad_token_id"]
        ids[ids == padding] = (padding + 1) % section.vocab_size
    segments = np.sort(generator.integers(0, 2, shape, dtype=np.int32))
    return {
        "input_ids": ids,
        "segment_ids": np.minimum(segments, config.get("type_vocab_size", 2) - 1),
        "input_mask": mask,
    }


def require_packages():
    """Returns the modules torch and transformers."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ConfigError(
            f"--logits: PyTorch and transformers must be installed. Received: {error}. Run "
            f"`{install_peers()}`, or compare weights only."
        ) from error
    return torch, transformers


def their_outputs(folder, batch):
    """Runs Hugging Face's model in float32.

    Returns ``logits`` [B, S, V], or [B, S, C] or [B, C] of a classifier; and what else the model
    has: ``sentence_logits`` [B, 2]; ``hidden`` [B, S, N] and ``pooled`` [B, N] of a BertModel;
    ``starts`` and ``ends`` [B, S].
    """
    torch, transformers = require_packages()
    reader = HuggingFaceReader(folder)
    architecture = architecture_of(reader)
    is_bert = architecture.name in ("bert", "roberta")
    cls = transformers.AutoModelForCausalLM
    if is_bert:
        named = reader.config.get("architectures") or architecture.classes
        cls = getattr(transformers, named[0])
    model = cls.from_pretrained(str(folder), trust_remote_code=False).float().eval()
    inputs = {"input_ids": batch["input_ids"], "attention_mask": 1 - batch["input_mask"]}
    if is_bert:
        inputs["token_type_ids"] = batch["segment_ids"]
    with torch.no_grad():
        outputs = model(**{name: torch.tensor(x).long() for name, x in inputs.items()})
    names = _OUTPUTS if cls.__name__ != _ONE_SENTENCE else {"logits": "sentence_logits"}
    known = {names[name]: value for name, value in outputs.items() if name in names}
    if not any(".pooler." in f".{name}" for name in reader.shapes):
        known.pop("pooled", None)  # transformers gave it random weights
    return {name: value.numpy() for name, value in known.items() if value is not None}


def our_outputs(checkpoint, params, batch, wanted):
    """Runs our model in float32 on the host.

    Returns:
        The outputs by name.
    """
    import tensorflow.compat.v1 as tf

    model, _ = registry.load_model(params.model_name)
    build = _BUILDERS.get(params.model_name, _next_fine_tuning_outputs)
    with tf.Graph().as_default(), tf.Session() as session:
        features = {name: tf.constant(value) for name, value in batch.items()}
        outputs = build(tf, model, features, params, wanted)
        tf.train.Saver(tf.global_variables()).restore(session, checkpoint)
        return session.run(outputs)


def _next_fine_tuning_outputs(tf, model, features, params, wanted):
    run = model.gptj_logits if params.model_name == "gptj" else model.gpt_logits
    ids = features["input_ids"]
    logits = run(ids, params, training=False)
    return {"logits": tf.reshape(logits, [*ids.shape, -1])}


def _bert_outputs(tf, model, features, params, wanted):
    shape = features["input_ids"].shape
    settings, positions = params.model, params.max_position_embeddings
    hidden, table = model.bert_encoder(features, settings, params.vocab_size, positions, False)
    outputs = {"hidden": hidden}
    if "logits" in wanted:
        everywhere = tf.tile(tf.range(shape[1])[None, :], [shape[0], 1])
        logits = model.masked_lm_logits(hidden, everywhere, table, settings)
        outputs["logits"] = tf.reshape(logits, [*shape, -1])
    if "sentence_logits" in wanted:
        outputs["sentence_logits"] = model.next_sentence_logits(hidden, settings)
    if "pooled" in wanted:
        outputs["pooled"] = model.pooled(hidden, settings)
    return {name: outputs[name] for name in wanted}


def _fine_tuning_outputs(tf, model, features, params, wanted):
    logits = model.run(features, params)
    return dict(zip(("starts", "ends"), logits)) if "starts" in wanted else {"logits": logits}


_BUILDERS = {
    "bert": _bert_outputs,
    "bert.fine_tuning.classifier": _fine_tuning_outputs,
    "bert.fine_tuning.token_classifier": _fine_tuning_outputs,
    "bert.fine_tuning.question_answering": _fine_tuning_outputs,
}
