"""Fine-tuned RoBERTas of Hugging Face: their heads, whose names are not all those of BERT.

The dense layer over the first token, BERT's pooler, is part of the head of a sequence there. It
moves no tensor.
"""

from __future__ import annotations

import functools

from modelzoo.common.convert import bert, roberta
from modelzoo.common.convert.bert_fine_tuning import (
    CLASSIFIER,
    QUESTION_ANSWERING,
    TOKEN_CLASSIFIER,
    canonical,
    files,
    head_config,
    num_classes,
    tree,
)
from modelzoo.common.convert.layout import Architecture, Layout, dense, expand

CLASSES = {
    CLASSIFIER: "RobertaForSequenceClassification",
    TOKEN_CLASSIFIER: "RobertaForTokenClassification",
    QUESTION_ANSWERING: "RobertaForQuestionAnswering",
}
HEADS = {
    CLASSIFIER: [
        *dense("classifier.dense", "cls_layer/cls_dense", "N N"),
        *dense("classifier.out_proj", "cls_layer/cls_output_dense", "C N"),
    ],
    TOKEN_CLASSIFIER: dense("classifier", "output_logits", "C N"),
    QUESTION_ANSWERING: dense("qa_outputs", "qa_logits", "C N"),
}
# No head uses the pooler, which old files hold all the same.
DROPPED = (*roberta.DROPPED, r"roberta\.pooler\.dense\.(weight|bias)")


def layout(params):
    """Returns the Layout of a model."""
    rows, sizes = roberta.encoder_table(params)
    sizes["C"] = num_classes(params)
    rows = [*rows, *HEADS[params.model_name]]
    return Layout(expand(rows, sizes, params.model.num_hidden_layers), {}, DROPPED)


def roberta_tree(config, where, names, room):
    """Returns our YAML's dictionary of a config.json; see Architecture."""
    as_bert, keys = roberta.as_bert(config, where)
    found = tree(as_bert, where, names, room)
    found["model"] |= keys
    return found


def config(params, where, names, room):
    """Returns the config.json of our parameters; see Architecture."""
    return {**roberta.model_config(params, where, CLASSES[room]), **head_config(params)}


def _architecture(room, name):
    return Architecture(
        "roberta",
        room,
        layout,
        functools.partial(roberta_tree, room=room),
        functools.partial(config, room=room),
        canonical,
        classes=(CLASSES[room],),
        is_theirs=lambda names: name in names,
        is_ours=lambda params: bert.is_roberta(params.model),
        files=functools.partial(files, room=room),
    )


ROBERTA_QUESTION_ANSWERING = _architecture(QUESTION_ANSWERING, "qa_outputs.weight")
ROBERTA_CLASSIFIER = _architecture(CLASSIFIER, "classifier.out_proj.weight")
ROBERTA_TOKEN_CLASSIFIER = _architecture(TOKEN_CLASSIFIER, "classifier.weight")
