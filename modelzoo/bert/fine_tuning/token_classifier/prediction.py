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
from modelzoo.common.data.preparation.records import sha256_of
from modelzoo.common.data.prepared import read_facts
from modelzoo.common.train import predictions


def predict(estimator, inputs, params, checkpoint_path, use_cs):
    """Writes the predictions of `predict_steps` batches to ``model_dir/predict``.

    With predict_input.text_file also ``<its name>_tagged.tsv``: a word, its true tag and the
    predicted one a line, as the scripts of CoNLL take them, of sentences that were predicted whole.

    Args:
        estimator: CerebrasEstimator of the model.
        inputs: InputFunctions of the model.
        params: Params.
        checkpoint_path: prefix of the checkpoint.
        use_cs: whether the wafer runs the model.

    Raises:
        DataError: if text_file is another file than the records were made of.
    """
    section = params.predict_input
    sentences = read_text_file(section) if section.text_file else []
    rows = list(predictions.predicted_rows(estimator, inputs, params, checkpoint_path, use_cs))
    folder = predictions.predict_folder(params)
    name = predictions.output_name("predictions", estimator, use_cs)
    count, npz, jsonl = predictions.write_predictions(rows, folder, name)
    tf.logging.info("wrote %d predictions to %s and %s", count, npz, jsonl)
    if section.text_file:
        tags = word_tags(rows, read_label_names(section.label_vocab_file))
        whole = whole_sentences(tags, sentences, section.text_file)
        path = folder / f"{Path(section.text_file).stem}_tagged.tsv"
        write_tags(path, sentences, whole, tags)
        left = len(sentences) - len(whole)
        rest = f"; {left} of {len(sentences)} sentences were not predicted whole" if left else ""
        count = sum(len(sentences[sentence].words) for sentence in whole)
        tf.logging.info("wrote the tags of %d words to %s%s", count, path, rest)


def read_text_file(section):
    """Reads the file that the records to predict from were made of.

    Args:
        section: NerInput with a text_file.

    Returns:
        A list of Sentence.

    Raises:
        DataError: if it is another one, as the manifest of the records tells, or unreadable.
    """
    path = section.text_file
    sentences = read_sentences(path)
    folder = section.data_dir if isinstance(section.data_dir, str) else section.data_dir[0]
    facts = read_facts(folder)
    if facts is not None and facts.inputs:
        digest = sha256_of(path)
        if digest not in facts.inputs.values():
            made_of = ", ".join(f"{name} ({sha256[:12]})" for name, sha256 in facts.inputs.items())
            raise DataError(
                f"{path}: predict_input.text_file must be the file that the records were made of, "
                f"by SHA-256 {made_of} as {folder} tells. Received: {digest[:12]}. Name that file, "
                "or make records of this one; other line ends make another file."
            )
    return sentences


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


def whole_sentences(tags, sentences, path):
    """Finds the sentences with a tag for each word.

    Args:
        tags: of `word_tags`.
        sentences: list of Sentence.
        path: their file.

    Returns:
        Their places. What else was predicted is a part of a sentence whose other records
        predict_steps or skip_steps leave out.

    Raises:
        DataError: if words were predicted that are not in the file.
    """
    words: dict[int, set] = {}
    for sentence, word in tags:
        words.setdefault(sentence, set()).add(word)
    whole = []
    for sentence, found in sorted(words.items()):
        known = len(sentences[sentence].words) if sentence < len(sentences) else 0
        if found == set(range(known)):
            whole.append(sentence)
        elif max(found) >= known:
            raise DataError(
                f"{path}: predict_input.text_file must be the file that the records were made of. "
                f"Received: a prediction of word {max(found) + 1} of sentence {sentence + 1}, "
                f"which has {known or 'none'} there. Name the file that `cerebras-tf prepare ner` "
                "read."
            )
    return whole


def write_tags(path, sentences, chosen, tags):
    """Writes ``word<TAB>true tag<TAB>predicted tag`` lines, an empty one after every sentence."""
    with open(path, "w", encoding="utf-8") as file:
        for index in chosen:
            words, true = sentences[index].words, sentences[index].tags
            for place, (word, tag) in enumerate(zip(words, true)):
                file.write(f"{word}\t{tag}\t{tags[index, place]}\n")
            file.write("\n")
