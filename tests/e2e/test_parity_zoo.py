"""Models of the zoo: 20 steps on the wafer as on the host, fused, padded, and in micro-batches."""

from __future__ import annotations

import functools

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

from cerebras_tf.frontend.program_source import CompilingSource
from tests.e2e import zoo_models as zoo
from tests.e2e.host_and_wafer import Run, assert_same_run, batches, check_parity, estimator, train

PAIRS = {"disable_nsp": False, "use_segment_embedding": True}
ROBERTA = {
    "disable_nsp": True,
    "encoder_nonlinearity": "gelu_exact",
    "use_segment_embedding": True,
    "position_embedding_offset": 2,
    "num_segments": 1,
}
SERIAL = {"use_parallel_residual": False, "rotary_emb_base": 100.0, "share_embedding_weights": True}
SCALED = {"scale_attn_by_inverse_layer_idx": True}
SMOOTH = {"label_smoothing": 0.1}
ARTICLES = zoo.gpt_batches(article=5)
MODELS = {
    "gpt": (lambda: zoo.gpt(), zoo.gpt_batches()),
    "gpt scaled by layer": (lambda: zoo.gpt(**SCALED), zoo.gpt_batches()),
    "gptj": (lambda: zoo.gptj(), ARTICLES),
    "gpt_neox": (lambda: zoo.gptj("gpt_neox_tiny"), ARTICLES),
    "gpt_neox serial tied": (lambda: zoo.gptj("gpt_neox_tiny", **SERIAL), ARTICLES),
    "bert": (lambda: zoo.bert(**PAIRS), zoo.bert_batches()),
    "roberta": (lambda: zoo.bert(**ROBERTA), zoo.bert_batches()),
    **{task: (lambda task=task: zoo.tuned(task), zoo.tuned_batches(task)) for task in zoo.TUNED},
    "transformer": (lambda: zoo.transformer(**SMOOTH), zoo.transformer_batches()),
    "transformer pre-norm": (
        lambda: zoo.transformer(**SMOOTH, use_pre_normalization=True, encoder_num_hidden_layers=1),
        zoo.transformer_batches(),
    ),
}
SLOW = {"gpt", "gpt_neox", "transformer"}  # near others of the table


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains a model of the table by name on both sides, once; returns the host's run, folders."""

    @functools.cache
    def trained(name):
        folder = tmp_path_factory.mktemp("zoo")
        make, arrays = MODELS[name]
        host, _ = check_parity(make(), arrays, folder)
        return host, folder

    return trained


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in MODELS]
)
def test_a_model_of_the_zoo_trains_as_on_the_host(name, trained):
    host, _ = trained(name)
    assert host.losses[18] < host.losses[0]  # of the same batch


def test_gpt_in_half_precision_trains_as_in_float32(trained, tmp_path):
    """The wafer computes in float32; the loss scale, a power of two, rounds nothing."""
    host, _ = trained("gpt scaled by layer")
    model = zoo.gpt(mixed_precision=True, **SCALED)
    wafer = train(model, zoo.gpt_batches(), tmp_path, use_cs=True)
    extra = set(wafer.variables) - set(host.variables)
    assert any("loss_scale" in name for name in extra), extra
    for name in extra:
        del wafer.variables[name]
    assert_same_run(host, wafer)


@pytest.mark.parametrize(
    ("model", "arrays", "attention"),
    [
        (lambda: zoo.gptj(), ARTICLES, "attention"),
        (
            lambda: zoo.bert(**PAIRS, attention_dropout_rate=0.1, dropout_rate=0.1),
            zoo.bert_batches(),
            "packed_attention",
        ),
    ],
    ids=["gptj", "bert"],
)
def test_attention_and_the_loss_of_the_words_are_fused(
    model, arrays, attention, tmp_path, monkeypatch
):
    """With padding and dropout in attention, and the bias in the loss: no scores, no logits."""
    ops, compiled = [], CompilingSource._compile_static

    def kept(step, types):
        program = compiled(step, types)
        ops.extend(instruction.op for instruction in program.instructions())
        return program

    monkeypatch.setattr(CompilingSource, "_compile_static", kept)
    made = estimator(model(), tmp_path, Run())
    made.compile(batches(arrays), mode=tf.estimator.ModeKeys.TRAIN)
    assert ops.count(attention) == ops.count(f"{attention}_grad") == 2
    assert "linear_softmax_xent_train" in ops
    assert not {"softmax", "sparse_softmax_xent"} & set(ops)


def spoilt(features, labels):
    """The batch with other numbers wherever its masks and weights say padding."""
    features = dict(features)
    padding = features["input_mask"] == 1
    for name, number in (("input_ids", 17), ("segment_ids", 1)):
        features[name] = np.where(padding, number, features[name])
    for weights, name in (("masked_lm_weights", "masked_lm_ids"), ("cls_weights", "cls_indices")):
        if weights in features:
            features[name] = np.where(features[weights] == 0, 2, features[name])
    if "cls_weights" in features:
        labels = np.where(features["cls_weights"] == 0, 1, labels)
    return features, labels.astype(np.int32)


def evaluated(name, trained, arrays):
    """The estimator of a trained model, and its loss of three batches on the wafer."""
    made = estimator(MODELS[name][0](), trained(name)[1] / "wafer", Run())
    return made, made.evaluate(batches(arrays), steps=3, use_cs=True)["loss"]


@pytest.mark.parametrize("name", ["bert", "question_answering", "extractive_summarization"])
def test_what_stands_in_padding_changes_no_loss(name, trained):
    arrays = MODELS[name][1]
    given = (arrays, [spoilt(*batch) for batch in arrays])
    np.testing.assert_allclose(*(evaluated(name, trained, each)[1] for each in given), rtol=1e-6)


def test_loss_of_summaries_is_that_of_the_probabilities_of_sentences(trained):
    arrays = MODELS["extractive_summarization"][1]
    made, loss = evaluated("extractive_summarization", trained, arrays)
    numbers = {"article_ids": np.arange(zoo.B, dtype=np.int32)[:, None]}
    numbered = [({**features, **numbers}, labels) for features, labels in arrays]
    found = made.predict(lambda: batches(numbered)().take(3), use_cs=True)
    chances = np.array([row["probabilities"] for row in found]).reshape(3, zoo.B, zoo.P)
    labels, weights = (np.stack(each) for each in zip(*((y, x["cls_weights"]) for x, y in arrays)))
    right = np.where(labels == 1, chances, 1 - chances)
    expected = 0.5 * -(np.log(right) * weights).sum((1, 2)) / zoo.B
    assert loss == pytest.approx(expected.mean(), rel=1e-5)


LAYERS = {"num_hidden_layers": 1}
SIDES = {"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1}


@pytest.mark.parametrize(
    ("make", "arrays", "count", "model"),
    [
        (zoo.transformer, zoo.transformer_batches(), 2, {**SMOOTH, **SIDES}),
        *(
            (zoo.bert, zoo.bert_batches(), 3, {"mlm_loss_scaling": scaling, **keys, **LAYERS})
            for scaling, keys in (
                ("precomputed_num_masked", {}),
                ("num_masked", {"disable_nsp": False}),
                ("batch_size", {}),
            )
        ),
        *(
            (zoo.gpt, zoo.gpt_batches(), 3, {**keys, **LAYERS})
            for keys in (
                {"loss_scaling": "num_tokens"},
                {"loss_scaling": "batch_size", "loss_weight": 0.1, "mixed_precision": True},
            )
        ),
    ],
)
def test_micro_batches_train_as_the_whole_batch(tmp_path, make, arrays, count, model):
    """However the loss is divided, and whether the data have done so: means over 7 or 4 words."""
    whole, parts = (
        train(make(micro_batches=k, **model), arrays, tmp_path / str(k), True, 5, micro_batches=k)
        for k in (1, count)
    )
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=5e-6)
