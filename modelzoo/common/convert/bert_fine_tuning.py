"""Fine-tuned BERTs of Hugging Face: classes of sequences and of tokens, spans of answers.

Names, forms and keys. It moves no tensor.
"""

from __future__ import annotations

import functools
import json
import os

from modelzoo.common.convert import bert
from modelzoo.common.convert.hugging_face import read_json
from modelzoo.common.convert.keys import (
    PLACEHOLDER_DATA_DIR,
    refuse_others,
    refuse_theirs,
    required,
    their_nonlinearity,
)
from modelzoo.common.convert.layout import Architecture, Layout, dense, expand

CLASSIFIER = "bert.fine_tuning.classifier"
TOKEN_CLASSIFIER = "bert.fine_tuning.token_classifier"
QUESTION_ANSWERING = "bert.fine_tuning.question_answering"
PLACEHOLDER_VOCAB_FILE = "path/to/vocab.txt"  # is looked up
LABELS = "label2id.json"
CLASSES = {
    CLASSIFIER: "BertForSequenceClassification",
    TOKEN_CLASSIFIER: "BertForTokenClassification",
    QUESTION_ANSWERING: "BertForQuestionAnswering",
}
# C classes; see bert.encoder_rows for the others.
TABLES = {
    CLASSIFIER: [
        *bert.encoder_rows("bert"),
        *bert.pooler_rows("bert"),
        *dense("classifier", "cls_layer/cls_output_dense", "C N"),
    ],
    TOKEN_CLASSIFIER: [*bert.encoder_rows("bert"), *dense("classifier", "output_logits", "C N")],
    QUESTION_ANSWERING: [*bert.encoder_rows("bert"), *dense("qa_outputs", "qa_logits", "C N")],
}
# Heads over single tokens do not use the pooler, which old files hold all the same.
UNUSED_POOLER = r"bert\.pooler\.dense\.(weight|bias)"


def layout(params):
    """Returns the Layout of a model."""
    room, sizes = params.model_name, bert.sizes_of(params)
    sizes["C"] = num_classes(params)
    links = expand(TABLES[room], sizes, params.model.num_hidden_layers)
    unused = () if room == CLASSIFIER else (UNUSED_POOLER,)
    return Layout(links, {}, (*bert.DROPPED, *unused))


def num_classes(params):
    """Returns the number of a head's outputs."""
    if params.model_name == TOKEN_CLASSIFIER:
        return params.model.num_classes
    return 2 if params.model_name == QUESTION_ANSWERING else params.model.num_cls_classes


def tree(config, where, names, room):
    """Returns our YAML's dictionary of a config.json; see Architecture."""
    nonlinearity = bert.checked_nonlinearity(config, where)
    refuse_others(config, where, {"type_vocab_size": bert.SEGMENTS})
    labels = labels_of(config)
    data = {
        "data_dir": PLACEHOLDER_DATA_DIR,
        "vocab_size": required(config, "vocab_size", where),
        "vocab_file": PLACEHOLDER_VOCAB_FILE,
        "max_sequence_length": required(config, "max_position_embeddings", where),
        "batch_size": 1,
    }
    model = bert.encoder_section(config, where, nonlinearity)
    rate = config.get("classifier_dropout")
    rate = model["dropout_rate"] if rate is None else rate
    if room == CLASSIFIER:
        kind = config.get("problem_type") or "single_label_classification"
        refuse_theirs("problem_type", kind, "single_label_classification", where)
        data |= {"data_processor": "TsvDataProcessor", "labels": labels}
        data |= {"text_columns": ["sentence"], "label_column": "label"}
        model |= {"num_cls_classes": len(labels), "cls_dropout_rate": rate}
    elif room == TOKEN_CLASSIFIER:
        data |= {"data_processor": "NerDataProcessor", "label_vocab_file": f"./{LABELS}"}
        model |= {"num_classes": len(labels), "encoder_output_dropout_rate": rate}
    else:
        refuse_theirs("number of labels", len(labels), 2, where)
        data["data_processor"] = "QuestionAnsweringDataProcessor"
    return bert.whole_tree(room, data, model)


def labels_of(config):
    """Returns the names of the classes of a config.json, in the order of their numbers."""
    named = config.get("id2label")
    if named is None:
        return [f"LABEL_{i}" for i in range(config.get("num_labels", 2))]
    return [str(named[key]) for key in sorted(named, key=int)]


def files(config, room):
    """Returns the label2id.json of a token classifier's config.json; see Architecture."""
    if room != TOKEN_CLASSIFIER:
        return {}
    numbers = {name: number for number, name in enumerate(labels_of(config))}
    return {LABELS: json.dumps(numbers, indent=2) + "\n"}


def config(params, where, names, room):
    """Returns the config.json of our parameters; see Architecture."""
    theirs = f"Hugging Face's {CLASSES[room]}"
    nonlinearity = their_nonlinearity(params.model.activation, "gelu_new", where)
    return {
        "model_type": "bert",
        "architectures": [CLASSES[room]],
        **bert.bert_config(params, where, nonlinearity, theirs),
        **head_config(params),
    }


def head_config(params):
    """Returns what a config.json says of the head of our parameters."""
    model, room = params.model, params.model_name
    if room == QUESTION_ANSWERING:
        return {}
    is_classifier = room == CLASSIFIER
    rate = model.cls_dropout_rate if is_classifier else model.encoder_output_dropout_rate
    labels = _our_labels(params) or [f"LABEL_{i}" for i in range(num_classes(params))]
    return {
        "classifier_dropout": rate,
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }


def _our_labels(params):
    section = params.train_input
    if params.model_name == CLASSIFIER:
        return section.task.labels if hasattr(section, "task") else None
    path = section.label_vocab_file
    if not os.path.exists(path):
        return None
    numbers = read_json(path)
    return sorted(numbers, key=numbers.get)


def canonical(name):
    """Names norms as newer files do."""
    return bert.canonical_norm(name)


def _architecture(room, is_theirs):
    return Architecture(
        "bert",
        room,
        layout,
        functools.partial(tree, room=room),
        functools.partial(config, room=room),
        canonical,
        classes=(CLASSES[room],),
        is_theirs=is_theirs,
        is_ours=lambda params: not bert.is_roberta(params.model),
        files=functools.partial(files, room=room),
    )


BERT_QUESTION_ANSWERING = _architecture(
    QUESTION_ANSWERING, lambda names: "qa_outputs.weight" in names
)
BERT_CLASSIFIER = _architecture(
    CLASSIFIER, lambda names: {"classifier.weight", "bert.pooler.dense.weight"} <= set(names)
)
BERT_TOKEN_CLASSIFIER = _architecture(TOKEN_CLASSIFIER, lambda names: "classifier.weight" in names)
