"""Records and parameters of every model and task that reads records: seven rows, tiny models."""

from __future__ import annotations

import json

import numpy as np

from modelzoo.common.config import registry
from modelzoo.common.config.params import params_from_dict
from modelzoo.common.data.preparation.records import RecordWriter

N, S, P, V = 7, 12, 4, 40
SIZES = {"hidden_size": 8, "num_heads": 2, "filter_size": 16, "layer_norm_epsilon": 1e-5}
ONE = {**SIZES, "num_hidden_layers": 1}
WIDE = {"name": "random_normal", "stddev": 0.5}
BERT = {**ONE, "use_segment_embedding": True, "initializer": WIDE}
GPT = {**ONE, "initializer": WIDE, "embedding_initializer": WIDE}
GPT_SECTION = {"data_processor": "GptTfRecordsProcessor"}
WORDS = {"max_predictions_per_seq": P}
MASKED = "BertMlmOnlyTfRecordsStaticMaskProcessor"
TUNED = "bert.fine_tuning."
TASKS = {
    "gpt3": ("gpt3", GPT_SECTION, GPT),
    "gpt3 by batch": ("gpt3", GPT_SECTION, {**GPT, "loss_scaling": "batch_size"}),
    "gptj": ("gptj", GPT_SECTION, GPT),
    "bert": ("bert", {"data_processor": "BertTfRecordsProcessor", **WORDS}, BERT),
    "bert by word": (
        "bert",
        {"data_processor": MASKED, **WORDS, "buckets": 2},
        {**BERT, "disable_nsp": True, "mlm_loss_scaling": "num_masked"},
    ),
    "classifier": (f"{TUNED}classifier", {"data_processor": "GlueTfRecordsProcessor"}, BERT),
    "tags": (
        f"{TUNED}token_classifier",
        {"data_processor": "NerDataProcessor"},
        {**BERT, "num_classes": 3},
    ),
    "answers": (
        f"{TUNED}question_answering",
        {"data_processor": "QuestionAnsweringDataProcessor"},
        BERT,
    ),
    "summaries": (
        f"{TUNED}extractive_summarization",
        {"data_processor": "BertSumTfRecordsProcessor", "original_records": True},
        BERT,
    ),
    "transformer": (
        "transformer",
        {"data_processor": "TransformerTfRecordsProcessor", "buckets": 2},
        {**SIZES, "encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1},
    ),
}
TRANSFORMER_SIZES = {
    "src_vocab_size": V,
    "tgt_vocab_size": V,
    "src_max_sequence_length": S,
    "tgt_max_sequence_length": S,
}


def columns(padding_is_one):
    """What the records of all tasks hold, of rows of 4 to S tokens."""
    rng = np.random.default_rng(3)

    def drawn(high, *shape):
        return rng.integers(0, high, (N, *shape))

    lengths = rng.permutation(np.arange(4, 4 + N))[:, None]
    real = (np.arange(S) < lengths).astype(np.int64)
    count = rng.integers(1, P + 1, (N, 1))
    places = (np.arange(P) < count).astype(np.float32)
    sentences = np.pad(places, ((0, 0), (0, 50 - P)))  # the sections' max_cls_tokens
    positions = np.arange(P) * places.astype(np.int64)
    cls_labels = np.pad(drawn(2, P), ((0, 0), (0, 50 - P))) * sentences.astype(np.int64)
    return (
        {
            "input_ids": drawn(V, S) * real,
            "input_mask": 1 - real if padding_is_one else real,
            "segment_ids": drawn(2, S) * real,
            "masked_lm_positions": positions,
            "masked_lm_ids": drawn(V, P),
            "masked_lm_weights": places,
            "next_sentence_labels": drawn(2, 1),
            "label": drawn(2, 1),
            "is_matched": drawn(2, 1),
            "label_ids": drawn(3, S),
            "start_positions": drawn(4, 1),
            "end_positions": drawn(4, 1),
            "cls_indices": np.pad(positions, ((0, 0), (0, 50 - P))),
            "cls_weights": sentences,
        },
        {"gpt": drawn(V, S), "summaries": cls_labels},
        lengths[:, 0],
    )


def write_records(folder, task, change=None):
    """Writes the records of a task; `change` gets the number of a record and the record."""
    features, labels, lengths = columns(task == "summaries")
    features["labels"] = labels["summaries" if task == "summaries" else "gpt"]
    rng = np.random.default_rng(4)
    writer = RecordWriter(folder, "part")
    for row in range(N):
        record = {name: values[row] for name, values in features.items()}
        if task == "transformer":
            sides = ("source_ids", "target_ids")
            record = {side: rng.integers(4, V, min(lengths[row], S - 1)) for side in sides}
        if change is not None:
            change(row, record)
        writer.write(record)
    writer.close()


def make_params(folder, task, batch_size, **section):
    """The task's parameters with one input section for all."""
    name, keys, model = TASKS[task]
    sizes = TRANSFORMER_SIZES
    if task != "transformer":
        sizes = {"vocab_size": V, "max_sequence_length": S}
    if task == "tags":
        (folder / "labels.json").write_text(json.dumps({"B-X": 0, "I-X": 1, "O": 2}))
        sizes = {**sizes, "label_vocab_file": str(folder / "labels.json")}
    given = {**keys, **sizes, "data_dir": str(folder), "batch_size": batch_size}
    given.update({"shuffle": False, "repeat": False, **section})
    tree = {
        "model_name": name,
        "train_input": given,
        "eval_input": {**given, "repeat": False},
        "model": model,
        "optimizer": {"optimizer_type": "sgd", "learning_rate": 0.1},
        "runconfig": {"tf_random_seed": 1, "model_dir": str(folder / "model"), "eval_steps": None},
    }
    return params_from_dict(registry.params_class(name, "test"), tree)
