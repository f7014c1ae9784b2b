"""The models that `bench` trains, with batches that need no files.

GPT-2 and GPT-J on random tokens, BERT as a classifier of sentences as long as those of SST-2, and
the Transformer on pairs as long as those of Multi30k.
"""

from __future__ import annotations

from typing import Any

from modelzoo.commands.configs import config_folder

SEED = 1
LEARNING_RATE = 1e-4  # of the peers; that of the zoo is in its params files
MODELS = ("gpt2", "bert", "gptj", "transformer")
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
# Captions of Multi30k's training set (Elliott et al., 2016; task 1, raw text) by their number of
# words and punctuation marks: English, with a mean of 13.1, and German, of 12.6.
MULTI30K_ENGLISH = (
    *(0, 0, 0, 0, 8, 32, 211, 770, 1698, 2417, 3039, 3310, 3189, 2850, 2536, 2116, 1557, 1323, 992),
    *(790, 602, 444, 302, 208, 183, 115, 91, 54, 42, 34, 22, 12, 12, 10, 8, 9, 3, 1, 5, 2, 2, 1),
)
MULTI30K_GERMAN = (
    *(0, 0, 3, 1, 23, 143, 564, 1419, 2137, 2759, 3142, 3165, 2881, 2563, 2207, 1760, 1468, 1175),
    *(892, 711, 494, 379, 323, 231, 136, 121, 91, 46, 44, 34, 22, 20, 12, 5, 11, 8, 4, 0, 2, 0, 0),
    *(1, 0, 1, 1, 1),
)
# Different batches; they come again in the same order.
_BATCHES = 16


def read_params(shape: Any) -> Any:
    """Parameters of a model at a shape, in float32 and without dropout."""
    from modelzoo.common.config.params import load_params

    if shape.model == "transformer":
        return load_params(
            config_folder() / "params_transformer_base.yaml", _translation_sizes(shape)
        )
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
        sizes: dict[str, Any] = {"model.rotary_dim": 64 if shape.hidden // shape.heads >= 64 else 2}
        sizes["model.max_position_embeddings"] = shape.sequence
        sizes["optimizer.max_loss_scale"] = 2.0**15  # the default: it is of dynamic scales
        return load_params(config_folder() / "params_gptj_6b.yaml", {**common, **sizes})
    loss = {"model.loss_weight": 1.0 / shape.sequence}  # the mean of the tokens' losses
    return load_params(config_folder() / "params_gpt2_small.yaml", {**common, **loss})


def _translation_sizes(shape: Any) -> dict[str, Any]:
    """The Transformer's sizes: layers count those of the encoder, which the decoder has too."""
    sizes: dict[str, Any] = {}
    for side in ("src", "tgt"):
        sizes[f"train_input.{side}_vocab_size"] = shape.vocabulary
        for name in ("train", "predict"):
            sizes[f"{name}_input.{side}_max_sequence_length"] = shape.sequence
            sizes[f"{name}_input.buckets"] = [shape.sequence]
    return {
        **sizes,
        "train_input.batch_size": shape.batch,
        "model.hidden_size": shape.hidden,
        "model.encoder_num_hidden_layers": shape.layers,
        "model.decoder_num_hidden_layers": shape.layers,
        "model.num_heads": shape.heads,
        "model.filter_size": 4 * shape.hidden,
        "model.dropout_rate": 0.0,
        "model.attention_dropout_rate": 0.0,
        "model.mixed_precision": False,
        "optimizer.loss_scaling_factor": 1.0,
    }


def model_fn_of(shape: Any) -> Any:
    """The model_fn of a shape's model."""
    if shape.model == "bert":
        from modelzoo.bert.fine_tuning.tasks import TASKS

        return TASKS["classifier"].model_fn
    if shape.model == "gptj":
        from modelzoo.gptj.model import model_fn as gptj

        return gptj
    if shape.model == "transformer":
        from modelzoo.transformer.model import model_fn as transformer

        return transformer
    from modelzoo.gpt3.model import model_fn

    return model_fn


def batches_of(shape: Any) -> list[tuple[dict[str, Any], Any]]:
    """Batches of random tokens, (features, labels) of NumPy arrays."""
    if shape.model == "transformer":
        return _translations(shape)
    return _sentences(shape) if shape.model == "bert" else _documents(shape)


def make_input_fn(shape: Any) -> Any:
    """An input function that gives these batches again and again."""
    import tensorflow as tf

    batches = batches_of(shape)
    (features, labels), *_ = batches
    lengths = {array.shape for found, _ in batches for array in found.values() if array.ndim == 2}

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

    return np.minimum(_drawn(SST2_PIECES, shape, SEED) + 2, shape.sequence)


def _drawn(counts: tuple[int, ...], shape: Any, seed: int) -> Any:
    """Lengths [batches, B] as often as they are counted."""
    import numpy as np

    share = np.array(counts) / sum(counts)
    return np.random.default_rng(seed).choice(len(share), (_BATCHES, shape.batch), p=share)


def _translations(shape: Any) -> list[tuple[dict[str, Any], Any]]:
    """Captions and their translations, of lengths that are drawn apart."""
    import numpy as np

    from modelzoo.transformer.pairs import FEATURES, Pairs, make_batch

    generator = np.random.default_rng(SEED)
    drawn = (_drawn(MULTI30K_ENGLISH, shape, SEED), _drawn(MULTI30K_GERMAN, shape, SEED + 1))
    batches = []
    for lengths in zip(*drawn):
        sources, targets = (
            [generator.integers(4, shape.vocabulary, size, np.int32) for size in side]
            for side in lengths
        )
        longest = max(int(lengths[0].max()), int(lengths[1].max()) + 1)
        width = shape.sequence if shape.pad == "fixed" else min(longest, shape.sequence)
        pairs = Pairs(sources, targets, shape.sequence, shape.sequence, cut=True)
        *features, labels = make_batch(pairs, range(shape.batch), shape.batch, width)
        batches.append((dict(zip(FEATURES, features)), labels))
    return batches


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
