"""Fine-tuned BERTs and RoBERTas of Hugging Face: classes of sequences and tokens, answer spans.

Names, forms and keys; it moves no tensor. In RoBERTa the dense layer over the first token, BERT's
pooler, is part of the head of a sequence.
"""

import functools
import json
import os

from modelzoo.common.convert import bert, roberta
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
    model_name, sizes = params.model_name, bert.sizes_of(params)
    sizes["C"] = num_classes(params)
    links = expand(TABLES[model_name], sizes, params.model.num_hidden_layers)
    unused = () if model_name == CLASSIFIER else (UNUSED_POOLER,)
    return Layout(links, {}, (*bert.DROPPED, *unused))


def num_classes(params):
    """Returns the number of a head's outputs."""
    if params.model_name == TOKEN_CLASSIFIER:
        return params.model.num_classes
    return 2 if params.model_name == QUESTION_ANSWERING else params.model.num_cls_classes


def tree(config, where, names, model_name):
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
    if model_name == CLASSIFIER:
        kind = config.get("problem_type") or "single_label_classification"
        refuse_theirs("problem_type", kind, "single_label_classification", where)
        data |= {"data_processor": "TsvDataProcessor", "labels": labels}
        data |= {"text_columns": ["sentence"], "label_column": "label"}
        model |= {"num_cls_classes": len(labels), "cls_dropout_rate": rate}
    elif model_name == TOKEN_CLASSIFIER:
        data |= {"data_processor": "NerDataProcessor", "label_vocab_file": f"./{LABELS}"}
        model |= {"num_classes": len(labels), "encoder_output_dropout_rate": rate}
    else:
        refuse_theirs("number of labels", len(labels), 2, where)
        data["data_processor"] = "QuestionAnsweringDataProcessor"
    return bert.whole_tree(model_name, data, model)


def labels_of(config):
    """Returns the names of the classes of a config.json, in the order of their numbers."""
    named = config.get("id2label")
    if named is None:
        return [f"LABEL_{i}" for i in range(config.get("num_labels", 2))]
    return [str(named[key]) for key in sorted(named, key=int)]


def files(config, model_name):
    """Returns the label2id.json of a token classifier's config.json; see Architecture."""
    if model_name != TOKEN_CLASSIFIER:
        return {}
    numbers = {name: number for number, name in enumerate(labels_of(config))}
    return {LABELS: json.dumps(numbers, indent=2) + "\n"}


def config(params, where, names, model_name):
    """Returns the config.json of our parameters; see Architecture."""
    theirs = f"Hugging Face's {CLASSES[model_name]}"
    nonlinearity = their_nonlinearity(params.model.activation, "gelu_new", where)
    return {
        "model_type": "bert",
        "architectures": [CLASSES[model_name]],
        **bert.bert_config(params, where, nonlinearity, theirs),
        **head_config(params),
    }


def head_config(params):
    """Returns what a config.json says of the head of our parameters."""
    model, model_name = params.model, params.model_name
    if model_name == QUESTION_ANSWERING:
        return {}
    is_classifier = model_name == CLASSIFIER
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


def _architecture(model_name, is_theirs):
    return Architecture(
        "bert",
        model_name,
        layout,
        functools.partial(tree, model_name=model_name),
        functools.partial(config, model_name=model_name),
        canonical,
        classes=(CLASSES[model_name],),
        is_theirs=is_theirs,
        is_ours=lambda params: not bert.is_roberta(params.model),
        files=functools.partial(files, model_name=model_name),
    )


BERT_QUESTION_ANSWERING = _architecture(
    QUESTION_ANSWERING, lambda names: "qa_outputs.weight" in names
)
BERT_CLASSIFIER = _architecture(
    CLASSIFIER, lambda names: {"classifier.weight", "bert.pooler.dense.weight"} <= set(names)
)
BERT_TOKEN_CLASSIFIER = _architecture(TOKEN_CLASSIFIER, lambda names: "classifier.weight" in names)


ROBERTA_CLASSES = {
    CLASSIFIER: "RobertaForSequenceClassification",
    TOKEN_CLASSIFIER: "RobertaForTokenClassification",
    QUESTION_ANSWERING: "RobertaForQuestionAnswering",
}
ROBERTA_HEADS = {
    CLASSIFIER: [
        *dense("classifier.dense", "cls_layer/cls_dense", "N N"),
        *dense("classifier.out_proj", "cls_layer/cls_output_dense", "C N"),
    ],
    TOKEN_CLASSIFIER: dense("classifier", "output_logits", "C N"),
    QUESTION_ANSWERING: dense("qa_outputs", "qa_logits", "C N"),
}
# No head uses the pooler, which old files hold all the same.
ROBERTA_DROPPED = (*roberta.DROPPED, r"roberta\.pooler\.dense\.(weight|bias)")


def roberta_layout(params):
    """Returns the Layout of a model."""
    rows, sizes = roberta.encoder_table(params)
    sizes["C"] = num_classes(params)
    rows = [*rows, *ROBERTA_HEADS[params.model_name]]
    return Layout(expand(rows, sizes, params.model.num_hidden_layers), {}, ROBERTA_DROPPED)


def roberta_tree(config, where, names, model_name):
    """Returns our YAML's dictionary of a config.json; see Architecture."""
    as_bert, keys = roberta.as_bert(config, where)
    found = tree(as_bert, where, names, model_name)
    found["model"] |= keys
    return found


def roberta_config(params, where, names, model_name):
    """Returns the config.json of our parameters; see Architecture."""
    return {
        **roberta.model_config(params, where, ROBERTA_CLASSES[model_name]),
        **head_config(params),
    }


def _roberta_architecture(model_name, name):
    return Architecture(
        "roberta",
        model_name,
        roberta_layout,
        functools.partial(roberta_tree, model_name=model_name),
        functools.partial(roberta_config, model_name=model_name),
        canonical,
        classes=(ROBERTA_CLASSES[model_name],),
        is_theirs=lambda names: name in names,
        is_ours=lambda params: bert.is_roberta(params.model),
        files=functools.partial(files, model_name=model_name),
    )


ROBERTA_QUESTION_ANSWERING = _roberta_architecture(QUESTION_ANSWERING, "qa_outputs.weight")
ROBERTA_CLASSIFIER = _roberta_architecture(CLASSIFIER, "classifier.out_proj.weight")
ROBERTA_TOKEN_CLASSIFIER = _roberta_architecture(TOKEN_CLASSIFIER, "classifier.weight")
