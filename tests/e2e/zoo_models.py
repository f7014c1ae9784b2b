"""Models of the zoo with two small layers, and batches for them. Holds no tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from modelzoo.bert.fine_tuning.tasks import TASKS
from modelzoo.bert.model import model_fn as bert_model_fn
from modelzoo.gpt3.model import model_fn as gpt_model_fn
from modelzoo.gptj.model import model_fn as gptj_model_fn
from modelzoo.transformer.model import model_fn as transformer_model_fn
from modelzoo.transformer.pairs import FEATURES, Pairs, make_batch

CONFIGS = Path(__file__).parents[2] / "configs"
SIZES = {"hidden_size": 16, "num_heads": 2, "filter_size": 32}
LAYERS = {**SIZES, "num_hidden_layers": 2}
# Rows and positions of a batch, masked words or sentences of a row, and tokens of the vocabulary.
B, S, P, V = 3, 12, 4, 260


def read_config(config, model, **sections):
    """The tree of a config with keys of the model, and of other sections, replaced."""
    tree = yaml.safe_load((CONFIGS / f"params_{config}.yaml").read_text(encoding="utf-8"))
    for name, keys in {"model": model, **sections}.items():
        tree[name].update(keys)
    return tree


def with_params(model_fn, tree):
    """The model_fn with `tree` for params."""

    def made(features, labels, mode, params):
        return model_fn(features, labels, mode, tree)

    return made


def gpt(mixed_precision=False, micro_batches=1, **model):
    """GPT-3 on batches of `gpt_batches`."""
    section = {"max_sequence_length": S, "batch_size": B}
    model = {**LAYERS, "mixed_precision": mixed_precision, **model}
    run = {"micro_batches": micro_batches}
    tree = read_config("gpt3_tiny", model, train_input=section, runconfig=run)
    if mixed_precision:
        tree["optimizer"].update(loss_scaling_factor="dynamic", initial_loss_scale=2.0**10)
    return with_params(gpt_model_fn, tree)


def gptj(config="gptj_tiny", **model):
    """GPT-J, or GPT-NeoX by its config, on batches of `gpt_batches`."""
    section = {"max_sequence_length": S, "batch_size": B}
    tree = read_config(config, {**LAYERS, "rotary_dim": 4, **model}, train_input=section)
    return with_params(gptj_model_fn, tree)


def gpt_batches(article=0):
    """Three batches: of row 0 some first tokens do not count, the end of row 1 is padding."""
    drawn = np.random.default_rng(4).integers(0, 256, (3, B, S + 1)).astype(np.int32)
    uncounted = np.zeros((3, B, S), np.int32)
    uncounted[:, 0, :article] = uncounted[:, 1, 9:] = 1
    return [
        ({"input_ids": ids[:, :-1], "input_mask": mask}, ids[:, 1:])
        for ids, mask in zip(drawn, uncounted)
    ]


def bert(micro_batches=1, **model):
    """BERT's pre-training on batches of `bert_batches`."""
    shapes = {"max_sequence_length": S, "max_predictions_per_seq": P, "batch_size": B}
    run = {"micro_batches": micro_batches}
    tree = read_config("bert_tiny", {**LAYERS, **model}, train_input=shapes, runconfig=run)
    if not model.get("disable_nsp", True):
        records = {"data_processor": "BertTfRecordsProcessor", "data_dir": "x", "vocab_size": V}
        tree["train_input"], tree["eval_input"] = {**shapes, **records}, records
    return with_params(bert_model_fn, tree)


def tokens(vocabulary, lengths, first):
    """Ids, mask and segments of rows of tokens; the second segment begins at `first`."""
    mask = (np.arange(S) >= np.reshape(lengths, (-1, 1))).astype(np.int32)
    segments = (np.arange(S) >= np.reshape(first, (-1, 1))).astype(np.int32) * (1 - mask)
    return {"input_ids": vocabulary, "input_mask": mask, "segment_ids": segments}


def bert_batches():
    """Three batches whose sequences end in padding, and so do their lists of masked positions."""
    rng = np.random.default_rng(4)
    lengths, made = np.array([S, 9, 5]), []
    for _ in range(3):
        positions = np.zeros((B, P), np.int32)
        weights = np.zeros((B, P), np.float32)
        for row, (length, count) in enumerate(zip(lengths, (4, 2, 1))):
            positions[row, :count] = np.sort(rng.permutation(length)[:count])
            weights[row, :count] = B / 7
        features = {
            **tokens(rng.integers(0, V, (B, S)).astype(np.int32), lengths, lengths // 2),
            "masked_lm_positions": positions,
            "masked_lm_ids": rng.integers(0, V, (B, P)).astype(np.int32),
            "masked_lm_weights": weights,
        }
        made.append((features, rng.integers(0, 2, (B, 1)).astype(np.int32)))
    return made


TUNED = {
    "classifier": ("bert_small_sst2", {}),
    "token_classifier": ("bert_small_ncbi_disease", {"num_classes": 5}),
    "question_answering": ("bert_small_squad", {}),
    "extractive_summarization": ("bert_small_bertsum", {"loss_weight": 0.5}),
}


def tuned(task):
    """A fine-tuning of one layer of BERT without dropout, on batches of `tuned_batches`."""
    config, model = TUNED[task]
    layers = {**SIZES, "num_hidden_layers": 1, "use_segment_embedding": True}
    tree = read_config(config, {**layers, **model})
    section = tree["train_input"]
    keys = {"vocab_size": V, "vocab_file": "none", "label_vocab_file": "none"}
    section.update({key: value for key, value in keys.items() if key in section})
    section.update(max_sequence_length=S, batch_size=B, buckets=None)
    if task == "extractive_summarization":
        section["max_cls_tokens"] = P
    tree["optimizer"]["learning_rate"] = 2.0e-3
    tree["model"].update({key: 0.0 for key in tree["model"] if key.endswith("dropout_rate")})
    return with_params(TASKS[task].model_fn, tree)


def tuned_batches(task):
    """Three batches whose rows end in padding; of answers, row 1 has none."""
    rng = np.random.default_rng(4)
    lengths, made = np.array([S, 9, 6]), []
    for _ in range(3):
        features = tokens(rng.integers(0, V, (B, S)).astype(np.int32), lengths, 4)
        if task == "classifier":
            labels = rng.integers(0, 2, B)
        elif task == "token_classifier":
            labels = rng.integers(0, 5, (B, S))
        elif task == "question_answering":
            labels = np.sort(rng.integers(4, lengths[:, None], (B, 2)), axis=1)
            labels[1] = 0
        else:
            indices = [[0, 3, 6, 10], [0, 4, 8, 0], [0, 0, 0, 0]]
            weights = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]], np.float32)
            features |= {"cls_indices": np.array(indices, np.int32), "cls_weights": weights}
            labels = rng.integers(0, 2, (B, P)) * (weights > 0)
        made.append((features, labels.astype(np.int32)))
    return made


def transformer(micro_batches=1, **model):
    """The encoder-decoder on batches of `transformer_batches`."""
    run = {"micro_batches": micro_batches}
    tree = read_config("transformer_tiny", {**SIZES, **model}, runconfig=run)
    return with_params(transformer_model_fn, tree)


def transformer_batches(length=9):
    """Pairs of 1 to `length` tokens, and a row that only fills the batch."""
    rng = np.random.default_rng(4)
    sides = [[rng.integers(4, V, n) for n in rng.integers(1, length - 1, 9)] for _ in range(2)]
    pairs = Pairs(*sides, length, length)
    made = [make_batch(pairs, range(i, i + 3), 4, length) for i in (0, 3, 6)]
    return [(dict(zip(FEATURES, batch)), batch[-1]) for batch in made]
