"""Writes predicted labels: all rows, and a .tsv file with words and tags."""

from pathlib import Path

from cerebras_tf.api import counted, get_logger
from cerebras_tf.errors import DataError
from modelzoo.common.data.preparation.records import sha256_of
from modelzoo.common.data.prepared import read_facts
from modelzoo.common.fine_tuning.tag_labels import OUTSIDE, TAG, read_label_names, read_sentences
from modelzoo.common.train import predictions


def write_predictions(section, rows, folder, name_of):
    """Writes ``predictions_*`` with a row for each record, and the tags of text_file's words.

    With predict_input.text_file there is also ``<its name>_tagged.tsv`` for the scripts of CoNLL,
    with a word, its true tag and the predicted one in each line. Sentences that were predicted in
    part are left out. See FineTuning.write_predictions.
    """
    sentences = read_text_file(section) if section.text_file else []
    rows = list(rows)
    count, npz, jsonl = predictions.write_predictions(rows, folder, name_of("predictions"))
    get_logger().info("wrote %s to %s and %s", counted(count, "prediction"), npz, jsonl)
    if section.text_file:
        tags = word_tags(rows, read_label_names(section.label_vocab_file))
        whole = whole_sentences(tags, sentences, section.text_file)
        path = folder / f"{Path(section.text_file).stem}_tagged.tsv"
        write_tags(path, sentences, whole, tags)
        left = len(sentences) - len(whole)
        more = (
            (f"; {left} of {len(sentences)} sentences were not predicted completely")
            if left
            else ""
        )
        count = sum(len(sentences[sentence].words) for sentence in whole)
        get_logger().info("wrote the tags of %s to %s%s", counted(count, "word"), path, more)


def read_text_file(section):
    """Reads text_file, the file that the records of the NerInput `section` were made from.

    Returns a list of Sentence.
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
                f"{path}: predict_input.text_file must be the file that the records in {folder} "
                f"were made from, by SHA-256 {made_of}. Received: {digest[:12]}. Use that file, or "
                "prepare records from this one. Line endings must be the same, too."
            )
    return sentences


def word_tags(rows, names):
    """Collects the tag of every word's first piece.

    Args:
        rows: predictions, each with label_ids and word_ids [S] and sentence_ids [1].

    Returns:
        Tag by (sentence, word), O for a label that is not a tag.
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
    """Returns the indices of the sentences with a tag for each word; `path` is their file.

    A sentence has too few if predict_steps or skip_steps leave out some of its records.
    """
    words: dict[int, set] = {}
    for sentence, word in tags:
        if sentence >= len(sentences) or word >= len(sentences[sentence].words):
            raise DataError(
                f"{path}: predict_input.text_file must be the file that the records were made "
                f"from. Received: a prediction of word {word + 1} of sentence {sentence + 1}, "
                "which is not in the file. Use the file that `cerebras-tf prepare ner` read."
            )
        words.setdefault(sentence, set()).add(word)
    return [index for index in sorted(words) if len(words[index]) == len(sentences[index].words)]


def write_tags(path, sentences, chosen, tags):
    """Writes lines ``word<TAB>true tag<TAB>predicted tag``, and an empty one after a sentence."""
    with open(path, "w", encoding="utf-8") as file:
        for index in chosen:
            words, true = sentences[index].words, sentences[index].tags
            for place, (word, tag) in enumerate(zip(words, true)):
                file.write(f"{word}\t{tag}\t{tags[index, place]}\n")
            file.write("\n")
