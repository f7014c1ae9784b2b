"""The models that `bench` trains, with batches that need no files.

GPT-2 and GPT-J on random tokens, and BERT as a classifier of sentences as long as those of SST-2.
"""

from __future__ import annotations

from typing import Any

from modelzoo.commands.configs import config_folder

SEED = 1
LEARNING_RATE = 1e-4  # of the peers; the zoo's stands in its params files
MODELS = ("gpt2", "bert", "gptj")
# How batches of BERT are padded: all to one length, or each to its longest sentence.
PADDINGS = ("fixed", "batch")
# Training sentences of SST-2 (Socher et al., 2013; the file of GLUE) by their number of word pieces
# in the vocabulary of bert-base-uncased: none of 0, 1,978 of 1, 5,322 of 2. [CLS] and [SEP] come
# on top; the mean is 13.3 then.
SST2_PIECES = (
    *(0, 1978, 5322, 6065, 5345, 4749, 4155, 3713, 3267, 2947, 2650, 2413, 2138, 1950, 1777, 1661),
    *(1515, 1373, 1285, 1132, 1106, 1046, 909, 820, 806, 733, 692, 628, 538, 491, 442, 448, 400),
    *(337, 304, 286, 242, 195, 203, 192, 155, 148, 130, 89, 82, 85, 73, 55, 42, 50, 40, 36, 19, 21),
    *(22, 15, 8, 6, 3, 2, 5, 5, 1, 2, 2),
)
# Different batches; they come again in the same order.
_BATCHES = 16


def read_params(shape: Any) -> Any:
    """Parameters of a model at a shape, in float32 and without dropout."""
    from modelzoo.common.params import load_params

    common = {
        "train_input.vocab_size": shape.vocabulary,
        "train_input.max_sequence_length": shape.sequence,
        "train_input.batch_size": shape.batch,
        "model.hidden_size": shape.hidden,
        "model.num_hidden_layers": shape.layers,
        "model.num_heads": shape.heads,
        "model.filter_size": 4 * shape.hidden,
        "model.dropout_rate": 0.0,
        "model.attention_dropout_rate": 0.0,
        "model.mixed_precision": False,
        "optimizer.loss_scaling_factor": 1.0,
    }
    if shape.model == "bert":
        return load_params(
            config_folder() / "params_bert_base_sst2.yaml",
            {
                **common,
                "model.cls_dropout_rate": 0.0,
                **{f"{name}_input.buckets": [] for name in ("train", "eval", "predict")},
            },
        )
    if shape.model == "gptj":
        sizes = {"model.rotary_dim": 64 if shape.hidden // shape.heads >= 64 else 2}
        sizes["model.max_position_embeddings"] = shape.sequence
        return load_params(config_folder() / "params_gptj_6b.yaml", {**common, **sizes})
    loss = {"model.loss_weight": 1.0 / shape.sequence}  # the mean of the tokens' losses
    return load_params(config_folder() / "params_gpt2_small.yaml", {**common, **loss})


def model_fn_of(shape: Any) -> Any:
    """The model_fn of a shape's model."""
    if shape.model == "bert":
        from modelzoo.bert.fine_tuning.classifier.model import model_fn as classifier

        return classifier
    if shape.model == "gptj":
        from modelzoo.gptj.model import model_fn as gptj

        return gptj
    from modelzoo.gpt3.model import model_fn

    return model_fn


def batches_of(shape: Any) -> list[tuple[dict[str, Any], Any]]:
    """Batches of random tokens, (features, labels) of NumPy arrays."""
    return _sentences(shape) if shape.model == "bert" else _documents(shape)


def make_input_fn(shape: Any) -> Any:
    """An input function that gives these batches again and again."""
    import tensorflow as tf

    batches = batches_of(shape)
    (features, labels), *_ = batches
    lengths = {array.shape for found, _ in batches for array in found.values()}

    def spec(array: Any) -> Any:
        same = array.ndim < 2 or len(lengths) == 1
        return tf.TensorSpec(array.shape if same else (array.shape[0], None), array.dtype)

    types = {name: spec(array) for name, array in features.items()}, spec(labels)

    def input_fn() -> Any:
        made = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=types)
        return made.cache().repeat()

    return input_fn


def _documents(shape: Any) -> list[tuple[dict[str, Any], Any]]:
    import numpy as np

    size = (shape.batch, shape.sequence + 1)
    tokens = np.random.default_rng(SEED).integers(0, shape.vocabulary, size, np.int32)
    ids, labels = tokens[:, :-1], tokens[:, 1:]
    return [({"input_ids": ids, "input_mask": np.zeros_like(ids)}, labels)]


def sentence_lengths(shape: Any) -> Any:
    """Tokens of the sentences of every batch [batches, B], drawn as those of SST-2."""
    import numpy as np

    share = np.array(SST2_PIECES) / sum(SST2_PIECES)
    drawn = np.random.default_rng(SEED).choice(len(share), (_BATCHES, shape.batch), p=share)
    return np.minimum(drawn + 2, shape.sequence)


def _sentences(shape: Any) -> list[tuple[dict[str, Any], Any]]:
    import numpy as np

    generator = np.random.default_rng(SEED)
    batches = []
    for lengths in sentence_lengths(shape):
        width = shape.sequence if shape.pad == "fixed" else int(lengths.max())
        mask = (np.arange(width) >= lengths[:, None]).astype(np.int32)
        ids = generator.integers(0, shape.vocabulary, mask.shape, np.int32) * (1 - mask)
        features = {"input_ids": ids, "input_mask": mask, "segment_ids": np.zeros_like(ids)}
        batches.append((features, generator.integers(0, 2, shape.batch, np.int32)))
    return batches
