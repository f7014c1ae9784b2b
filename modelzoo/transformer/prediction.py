"""Predict mode of the encoder-decoder: translations by beam search, and their BLEU.

The encoder runs once for each batch. The decoder then runs token by token with a key-value cache.
"""

import json
import operator
from pathlib import Path

import numpy as np

from cerebras_tf.errors import ConfigError
from cerebras_tf.whole_file import write_whole
from modelzoo.common.generate.cached_decoder import ROW_AXES, CachedDecoder, decoder_signature
from modelzoo.common.generate.stepper import Stepper
from modelzoo.common.metrics.bleu import corpus_bleu
from modelzoo.common.train.console import counted
from modelzoo.common.train.predictions import (
    keep_scores,
    log_skipped_batches,
    output_name,
    predict_folder,
    require_rows,
)
from modelzoo.transformer.beam_search import beam_search
from modelzoo.transformer.pairs import FEATURES, NO_PAIR


def predict(estimator, inputs, params, checkpoint_path, use_cs):
    """Translates ``predict_input`` and writes ``model_dir/predict/translations_*.{txt,jsonl}``.

    If there are references, BLEU is logged and written for TensorBoard and to ``scores.json``.
    """
    import tensorflow.compat.v1 as tf

    section = params.predict_input
    processor = inputs.processor(section)
    if not hasattr(processor, "references"):
        raise ConfigError(
            f"predict_input.data_processor: must read text to translate. Received: "
            f"{section.data_processor}. Use TransformerDynamicDataProcessor."
        )
    batches = processor.batches(False, predicting=True)
    first = section.skip_steps or 0
    steps = params.runconfig.predict_steps or 1
    last = min(batches.batches_per_epoch, first + steps)
    require_rows(max(0, last - first), section)
    found = {}
    with open_translator(estimator, params, checkpoint_path, use_cs) as translate:
        for number in range(first, last):
            found.update(translate(batches.batch(number)))
            tf.logging.info("translated %d of %d sentences", len(found), len(batches.pairs))
    if last < batches.batches_per_epoch:
        log_skipped_batches(steps)
    name = output_name("translations", estimator, use_cs)
    folder = predict_folder(params)
    rows = as_rows(found, processor)
    write(rows, folder, name)
    tf.logging.info(
        "wrote %s to %s/%s.{txt,jsonl}", counted(len(rows), "translation"), folder, name
    )
    scored = rows and "reference" in rows[0]
    keep_scores(folder, checkpoint_path, score(rows, processor) if scored else {})


def open_translator(estimator, params, checkpoint_path, use_cs):
    """Makes a Translator from an estimator's checkpoint; a context manager."""
    model = params.model
    layers, size = model.decoder_num_hidden_layers, model.hidden_size // model.num_heads
    shape, beams = (layers, model.num_heads, size), params.predict_input.beam_size
    signature = {
        **by_sentence(decoder_signature(*shape), beams),
        **encoder_signature("encoder_mask"),
        "memory": _spec([layers, 2, None, model.num_heads, None, size], "float32"),
    }
    given = estimator, checkpoint_path, use_cs
    used: set[str] = set()
    encode = Stepper(*given, encoder_signature(*ENCODED), warn_unused=False, used=used)
    step = BeamStepper(*given, signature, used=used)
    decoder = CachedDecoder(step, *shape, limit=params.max_position_embeddings)
    return Translator(encode, decoder, params)


ENCODED = ("encoder_input_ids", "encoder_mask")


def by_sentence(signature, beams):
    """Returns a decoder's TensorSpecs with the axes [B, beams] in place of rows."""
    found = {}
    for name, axis in ROW_AXES.items():
        shape = signature[name].shape.as_list()
        shape[axis : axis + 1] = None, beams
        found[name] = _spec(shape, signature[name].dtype)
    return found


class BeamStepper(Stepper):
    """A Stepper that feeds the rows of a decoder by sentence; see `by_sentence`."""

    def __call__(self, **features):
        """Runs a step; see Stepper."""
        sentences = len(features["encoder_mask"])
        for name, axis in ROW_AXES.items():
            shape = list(features[name].shape)
            shape[axis : axis + 1] = sentences, shape[axis] // sentences
            features[name] = features[name].reshape(shape)
        return super().__call__(**features)


def encoder_signature(*names):
    """Returns the named [B, S] int32 features of an encoder: TensorSpecs by name."""
    return {name: _spec([None, None], "int32") for name in names}


def _spec(shape, dtype):
    import tensorflow.compat.v1 as tf

    return tf.TensorSpec(shape, dtype)


class Translator:
    """Translates batches."""

    def __init__(self, encode, decoder, params):
        self._encode = encode
        self._decoder = decoder
        self._section = params.predict_input
        self._positions = params.max_position_embeddings

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # The encoder's session was opened first and must be closed last.
        self._decoder.__exit__(*_)
        self._encode.close()

    def __call__(self, batch):
        """Translates a batch of ``PairBatches``.

        Returns the best Hypothesis of each pair, by the pair's number.
        """
        batch = dict(zip(FEATURES, batch))
        encoded = self._encode(**{name: batch[name] for name in ENCODED})
        index, section = batch["pair_index"], self._section
        limits = np.minimum(batch["encoder_input_length"] + section.extra_length, self._positions)
        limits[index == NO_PAIR] = 1
        found = beam_search(
            self._decoder,
            limits,
            section.beam_size,
            section.length_penalty,
            memory=encoded["memory"],
            encoder_mask=batch["encoder_mask"],
        )
        return {int(i): best for i, best in zip(index, found) if i != NO_PAIR}


def as_rows(found, processor):
    """Returns a dictionary for each translation, in the order of the sources."""
    sources, references = processor.references()
    vocabulary = processor.target_vocabulary()
    rows = []
    for number in sorted(found):
        tokens, value = found[number]
        text = vocabulary.decode(tokens).replace("\n", " ")
        row = {"number": number, "source": sources[number], "translation": text}
        if references is not None:
            row["reference"] = references[number]
        rows.append({**row, "score": round(value, 5), "tokens": [int(t) for t in tokens]})
    return rows


def write(rows, folder, name):
    """Writes ``<name>.txt`` with one translation in each line, and ``<name>.jsonl``."""
    texts = {
        ".txt": (row["translation"] for row in rows),
        ".jsonl": (json.dumps(row, ensure_ascii=False) for row in rows),
    }
    for end, lines in texts.items():
        write_whole(Path(folder, f"{name}{end}"), "".join(f"{line}\n" for line in lines))


def score(rows, processor):
    """Logs and returns BLEU, its signature, and the fraction of exact matches."""
    import tensorflow.compat.v1 as tf

    ours, references = ([row[key] for row in rows] for key in ("translation", "reference"))
    bleu = corpus_bleu(ours, references, tokenizer=processor.bleu_tokenizer)
    equal = sum(map(operator.eq, ours, references)) / len(rows)
    tf.logging.info(
        "BLEU %.2f (%s), exact match %.1f %%", bleu.score, bleu.signature, 100.0 * equal
    )
    return {"bleu": bleu.score, "exact_match": equal, "bleu_signature": bleu.signature}
