"""Fine-tuned BERTs and RoBERTas of Hugging Face: classes of sequences and tokens, answer spans.

Names, forms and keys; it moves no tensor. In RoBERTa the dense layer over the first token, BERT's
pooler, is part of the head of a sequence. See bert.encoder_rows for the dimensions.
"""

import functools
import json

from modelzoo.common.convert import bert
from modelzoo.common.convert.keys import (
    PLACEHOLDER_DATA_DIR,
    refuse_others,
    refuse_theirs,
    required,
    their_nonlinearity,
    whole_tree,
)
from modelzoo.common.convert.layout import Architecture, Layout, dense, expand
from modelzoo.common.data.prepared import known_labels

CLASSIFIER = "bert.fine_tuning.classifier"
TOKEN_CLASSIFIER = "bert.fine_tuning.token_classifier"
QUESTION_ANSWERING = "bert.fine_tuning.question_answering"
PLACEHOLDER_VOCAB_FILE = "path/to/vocab.txt"  # is looked up
LABELS = "label2id.json"
# Ends of their classes, which begin with Bert or Roberta.
CLASSES = {
    CLASSIFIER: "ForSequenceClassification",
    TOKEN_CLASSIFIER: "ForTokenClassification",
    QUESTION_ANSWERING: "ForQuestionAnswering",
}
HEADS = {
    CLASSIFIER: [
        *bert.pooler_rows("bert"),
        *dense("classifier", "cls_layer/cls_output_dense", "C N"),
    ],
    TOKEN_CLASSIFIER: dense("classifier", "output_logits", "C N"),
    QUESTION_ANSWERING: dense("qa_outputs", "qa_logits", "C N"),
}
ROBERTA_CLASSIFIER_HEAD = [
    *dense("classifier.dense", "cls_layer/cls_dense", "N N"),
    *dense("classifier.out_proj", "cls_layer/cls_output_dense", "C N"),
]


def class_of(kind, model_name):
    """Returns the name of their class; `kind` is bert or roberta."""
    return f"{kind.capitalize()}{CLASSES[model_name]}"


def layout(params, kind):
    """Returns the Layout of a model."""
    has_pooler = kind == "bert" and params.model_name == CLASSIFIER
    rows, sizes, head = bert.encoder_rows("bert"), bert.sizes_of(params), HEADS[params.model_name]
    if kind == "roberta":
        rows, sizes = bert.roberta_table(params)
        head = ROBERTA_CLASSIFIER_HEAD if params.model_name == CLASSIFIER else head
    links = expand(
        [*rows, *head], sizes | {"C": num_classes(params)}, params.model.num_hidden_layers
    )
    # Other heads do not use the pooler, which old files hold all the same.
    unused = () if has_pooler else (rf"{kind}\.pooler\.dense\.(weight|bias)",)
    dropped = bert.DROPPED if kind == "bert" else bert.ROBERTA_DROPPED
    return Layout(links, {}, (*dropped, *unused))


def num_classes(params):
    """Returns the number of a head's outputs."""
    if params.model_name == TOKEN_CLASSIFIER:
        return params.model.num_classes
    return 2 if params.model_name == QUESTION_ANSWERING else params.model.num_cls_classes


def tree(config, where, names, model_name, kind):
    """Returns our YAML's dictionary of a config.json; see Architecture."""
    nonlinearity, more = bert.checked_nonlinearity(config, where), {}
    if kind == "roberta":
        config, more = bert.as_bert(config, where)
    refuse_others(config, where, {"type_vocab_size": bert.SEGMENTS})
    labels = labels_of(config)
    data = {
        "data_dir": PLACEHOLDER_DATA_DIR,
        "vocab_size": required(config, "vocab_size", where),
        "vocab_file": PLACEHOLDER_VOCAB_FILE,
        "max_sequence_length": required(config, "max_position_embeddings", where),
        "batch_size": 1,
    }
    model = bert.encoder_section(config, where, nonlinearity) | more
    rate = config.get("classifier_dropout")
    rate = model["dropout_rate"] if rate is None else rate
    if model_name == CLASSIFIER:
        problem = config.get("problem_type") or "single_label_classification"
        refuse_theirs("problem_type", problem, "single_label_classification", where)
        data |= {"data_processor": "TsvDataProcessor", "labels": labels}
        data |= {"text_columns": ["sentence"], "label_column": "label"}
        model |= {"num_cls_classes": len(labels), "cls_dropout_rate": rate}
    elif model_name == TOKEN_CLASSIFIER:
        data |= {"data_processor": "NerDataProcessor", "label_vocab_file": LABELS}
        model |= {"num_classes": len(labels), "encoder_output_dropout_rate": rate}
    else:
        refuse_theirs("number of labels", len(labels), 2, where)
        data["data_processor"] = "QuestionAnsweringDataProcessor"
    return whole_tree(model_name, data, model)


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


def config(params, where, names, model_name, kind):
    """Returns the config.json of our parameters; see Architecture."""
    name = class_of(kind, model_name)
    if kind == "roberta":
        return {**bert.roberta_model_config(params, where, name), **head_config(params)}
    nonlinearity = their_nonlinearity(params.model.activation, "gelu_new", where)
    return {
        "model_type": "bert",
        "architectures": [name],
        **bert.bert_config(params, where, nonlinearity, f"Hugging Face's {name}"),
        **head_config(params),
    }


def head_config(params):
    """Returns what a config.json says of the head of our parameters."""
    model, model_name = params.model, params.model_name
    if model_name == QUESTION_ANSWERING:
        return {}
    is_classifier = model_name == CLASSIFIER
    rate = model.cls_dropout_rate if is_classifier else model.encoder_output_dropout_rate
    labels = known_labels(params.train_input)
    labels = labels or [f"LABEL_{i}" for i in range(num_classes(params))]
    return {
        "classifier_dropout": rate,
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }


def _architecture(kind, model_name, *tensors):
    """Returns the Architecture; a model of it without a named class has all these tensors."""
    return Architecture(
        kind,
        model_name,
        functools.partial(layout, kind=kind),
        functools.partial(tree, model_name=model_name, kind=kind),
        functools.partial(config, model_name=model_name, kind=kind),
        bert.canonical_norm,
        classes=(class_of(kind, model_name),),
        is_theirs=lambda names: set(tensors) <= set(names),
        is_ours=lambda params: bert.is_roberta(params.model) == (kind == "roberta"),
        files=functools.partial(files, model_name=model_name),
    )


BERT_QUESTION_ANSWERING = _architecture("bert", QUESTION_ANSWERING, "qa_outputs.weight")
BERT_CLASSIFIER = _architecture("bert", CLASSIFIER, "classifier.weight", "bert.pooler.dense.weight")
BERT_TOKEN_CLASSIFIER = _architecture("bert", TOKEN_CLASSIFIER, "classifier.weight")
ROBERTA_QUESTION_ANSWERING = _architecture("roberta", QUESTION_ANSWERING, "qa_outputs.weight")
ROBERTA_CLASSIFIER = _architecture("roberta", CLASSIFIER, "classifier.out_proj.weight")
ROBERTA_TOKEN_CLASSIFIER = _architecture("roberta", TOKEN_CLASSIFIER, "classifier.weight")
