"""Predict mode of token classifiers: rows, and a .tsv with a tag beside every word.

Scores come from evaluation.
"""

from __future__ import annotations

from pathlib import Path

import tensorflow.compat.v1 as tf

from cerebras_tf.errors import DataError
from modelzoo.bert.fine_tuning.token_classifier.labels import (
    OUTSIDE,
    TAG,
    read_label_names,
    read_sentences,
)
from modelzoo.common import predictions


def predict(estimator, inputs, params, checkpoint_path, use_cs):
    """Writes the predictions of `predict_steps` batches to ``model_dir/predict``.

    With predict_input.text_file also ``<its name>_tagged.tsv``: a word, its true tag and the
    predicted one a line, as the scripts of CoNLL take them; O where nothing was predicted.

    Args:
        estimator: CerebrasEstimator of the model.
        inputs: InputFunctions of the model.
        params: Params.
        checkpoint_path: prefix of the checkpoint.
        use_cs: whether the wafer runs the model.
    """
    section = params.predict_input
    rows = list(predictions.predicted_rows(estimator, inputs, params, checkpoint_path, use_cs))
    folder = predictions.predict_folder(params)
    name = predictions.output_name("predictions", estimator, use_cs)
    count, npz, jsonl = predictions.write_predictions(rows, folder, name)
    tf.logging.info("wrote %d predictions to %s and %s", count, npz, jsonl)
    if section.text_file:
        sentences = read_sentences(section.text_file)
        tags = word_tags(rows, read_label_names(section.label_vocab_file))
        check_words(tags, sentences, section.text_file)
        path = folder / f"{Path(section.text_file).stem}_tagged.tsv"
        write_tags(path, sentences, tags)
        tf.logging.info("wrote the tags of %d words to %s", len(tags), path)


def word_tags(rows, names):
    """Collects the tag of every word's first piece.

    Args:
        rows: predictions, each with label_ids and word_ids [S] and sentence_ids [1].
        names: labels in the order of their numbers.

    Returns:
        Tag by (sentence, word); a label that is no tag is O.
    """
    tags = {}
    for row in rows:
        sentence = int(row["sentence_ids"][0])
        for label, word in zip(row["label_ids"], row["word_ids"]):
            if word >= 0:
                name = names[int(label)]
                tags[sentence, int(word)] = name if TAG.fullmatch(name) else OUTSIDE
    return tags


def check_words(tags, sentences, path):
    """Checks that predictions are of these sentences.

    Raises:
        DataError: if one is of a word that is not there.
    """
    for sentence, word in tags:
        if sentence >= len(sentences) or word >= len(sentences[sentence].words):
            raise DataError(
                f"{path}: predict_input.text_file must be the file that the records were made of. "
                f"Received: a prediction for word {word + 1} of sentence {sentence + 1}, which it "
                "does not have. Name the file that scripts/create_ner_tfrecords.py read."
            )


def write_tags(path, sentences, tags):
    """Writes ``word<TAB>true tag<TAB>predicted tag`` lines, an empty one after every sentence."""
    with open(path, "w", encoding="utf-8") as file:
        for index, sentence in enumerate(sentences):
            for place, (word, tag) in enumerate(zip(sentence.words, sentence.tags)):
                file.write(f"{word}\t{tag}\t{tags.get((index, place), OUTSIDE)}\n")
            file.write("\n")
