"""Tests of the encoder-decoder against a NumPy re-computation, and of decoding with a cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf import CerebrasEstimator
from modelzoo.common.config.params import params_from_dict
from modelzoo.transformer.data import INPUTS
from modelzoo.transformer.model import EncoderDecoder, model_fn
from modelzoo.transformer.pairs import EOS, FEATURES, SOS, Pairs, make_batch
from modelzoo.transformer.params import Params
from modelzoo.transformer.prediction import ENCODED, open_translator
from tests.modelzoo import oracles
from tests.modelzoo.oracles import numbered

CONFIG = Path(__file__).parents[3] / "configs" / "params_transformer_tiny.yaml"
LENGTH = 12


def tree(**model):
    """The tiny configuration, made tinier."""
    tree = Params.with_defaults(yaml.safe_load(CONFIG.read_text(encoding="utf-8")))
    tree["model"].update({"hidden_size": 16, "num_heads": 2, "filter_size": 32, **model})
    return tree


def batch():
    """Rows of different lengths, and one that only fills the batch."""
    rng = np.random.default_rng(8)
    sides = [[rng.integers(4, 260, n) for n in lengths] for lengths in ((3, 11, 7), (11, 2, 6))]
    return dict(
        zip((*FEATURES, "labels"), make_batch(Pairs(*sides, LENGTH, LENGTH), range(3), 4, LENGTH))
    )


def sinusoids(length, size):
    """Vaswani et al. (2017), section 3.5, with tensor2tensor's rates, interleaved."""
    table = np.zeros((length, size))
    for channel in range(size // 2):
        rate = 10000.0 ** (-channel / (size // 2 - 1))
        table[:, 2 * channel] = np.sin(np.arange(length) * rate)
        table[:, 2 * channel + 1] = np.cos(np.arange(length) * rate)
    return table


class Oracle(oracles.Oracle):
    """The model of the tiny configuration in NumPy, float64, from its variables by name."""

    def __init__(self, values, pre):
        super().__init__(values, heads=2)
        self.pre = pre

    def embed(self, ids, side):
        table = self.values["encoder_token_embedding/embedding_weights"]
        x = table[ids] * np.sqrt(table.shape[1]) + sinusoids(ids.shape[1], table.shape[1])
        return x if self.pre else self.norm(x, f"pre_{side}_layer_norm")

    def around(self, x, sublayer, number, side):
        name = numbered(f"{side}/layer_normalization_layer", number)
        if self.pre:
            return x + sublayer(self.norm(x, name))
        return self.norm(x + sublayer(x), name)

    def block(self, x, side, index, first_norm, first_dense, attentions):
        """`attentions`: of each its name, its memory (None: x) and what is hidden."""
        for place, (name, memory, hidden) in enumerate(attentions):
            name = numbered(f"{side}/{name}", index)
            x = self.around(
                x,
                lambda y, name=name, memory=memory, hidden=hidden: self.attend(
                    y, name, hidden, memory
                ),
                first_norm + place,
                side,
            )
        ffn = numbered(f"{side}/ffn", index)
        wide, narrow = (f"{ffn}/{numbered('dense_layer', first_dense + n)}" for n in (0, 1))
        return self.around(
            x,
            lambda y: self.dense(np.maximum(self.dense(y, wide), 0), narrow),
            first_norm + len(attentions),
            side,
        )

    def logits(self, features):
        ids, mask = features["encoder_input_ids"], features["encoder_mask"].astype(bool)
        hidden = np.repeat(mask[:, None], ids.shape[1], axis=1)
        x = self.embed(ids, "encoder")
        for i in range(2):
            x = self.block(x, "encoder", i, 2 * i, 2 * i, [("self_attention", None, hidden)])
        memory = self.norm(x, "post_encoder_layer_norm") if self.pre else x
        later = oracles.later(LENGTH)[None]
        x = self.embed(features["decoder_input_ids"], "decoder")
        both = [("self_attention", None, later), ("encoder_decoder_attention", memory, hidden)]
        for i in range(2):
            x = self.block(x, "decoder", i, 4 + 3 * i, 4 + 2 * i, both)
        x = self.norm(x, "post_decoder_layer_norm") if self.pre else x
        return x @ self.values["encoder_token_embedding/embedding_weights"].T + self.values["bias"]


@pytest.mark.parametrize("pre", [False, True])
def test_logits_are_those_of_a_numpy_model_padding_and_all(pre):
    features = batch()
    params = params_from_dict(Params, tree(use_pre_normalization=pre))
    with tf.Graph().as_default(), tf.Session() as session:
        model = EncoderDecoder(params, training=False)
        inputs = {name: tf.constant(features[name]) for name in FEATURES}
        logits = model.logits(*model.decoder_output(inputs))
        session.run(tf.global_variables_initializer())
        oracle = Oracle(oracles.draw(tf.trainable_variables(), session), pre)
        ours = session.run(logits).reshape(4, LENGTH, -1)
    theirs = oracle.logits(features)
    real = features["decoder_mask"] == 0
    assert np.abs(theirs[real]).max() > 1
    np.testing.assert_allclose(ours[real], theirs[real], rtol=0, atol=2e-4)


def test_label_smoothing_mixes_the_label_with_a_uniform_distribution():
    """The loss of a step without training, from all logits and the definition."""
    features, smoothing = batch(), 0.3
    losses = {}
    for rate in (0.0, smoothing):
        settings = tree(label_smoothing=rate)
        with tf.Graph().as_default(), tf.Session() as session:
            inputs = {name: tf.constant(features[name]) for name in FEATURES}
            labels = tf.constant(features["labels"])
            spec = model_fn(inputs, labels, tf.estimator.ModeKeys.TRAIN, settings)
            session.run(tf.global_variables_initializer())
            values = oracles.draw(tf.trainable_variables(), session)
            losses[rate] = session.run(spec.loss)
    logits = Oracle(values, pre=False).logits(features)
    log_probs = oracles.log_softmax(logits)
    own = oracles.taken(log_probs, features["labels"])
    real = features["decoder_mask"] == 0
    plain, uniform = -own[real].mean(), -log_probs.mean(-1)[real].mean()
    np.testing.assert_allclose(losses[0.0], plain, rtol=1e-5)
    expected = (1 - smoothing) * plain + smoothing * uniform
    np.testing.assert_allclose(losses[smoothing], expected, rtol=1e-5)


@pytest.mark.parametrize("use_cs", [False, True])
def test_decoding_with_a_cache_gives_the_logits_of_the_whole_sequence(tmp_path, use_cs, caplog):
    """Tokens one by one, three rows a sentence, against one pass over each sequence."""
    caplog.set_level("INFO", logger="tensorflow")
    features, settings = batch(), tree()
    settings["predict_input"] |= {"src_max_sequence_length": LENGTH, "beam_size": 3}
    params = params_from_dict(Params, settings)
    estimator = CerebrasEstimator(model_fn, str(tmp_path), params=settings, use_cs=use_cs)
    with tf.Graph().as_default(), tf.Session() as session:
        model = EncoderDecoder(params, training=False)
        inputs = {name: tf.constant(features[name]) for name in FEATURES}
        whole = model.logits(*model.decoder_output(inputs))
        tf.train.create_global_step()
        tf.get_variable("deeper", [2])  # which neither encoder nor decoder has
        session.run(tf.global_variables_initializer())
        oracles.draw(tf.trainable_variables(), session)
        path = tf.train.Saver().save(session, str(tmp_path / "model.ckpt"), 0)
        expected = session.run(whole).reshape(4, LENGTH, -1)
    rows = np.repeat(np.arange(4), 3)
    ids = features["decoder_input_ids"]
    with open_translator(estimator, params, path, use_cs) as translator:
        memory = translator._encode(**{name: features[name] for name in ENCODED})["memory"]
        others = {"memory": memory, "encoder_mask": features["encoder_mask"]}
        decoder = translator._decoder
        logits = decoder.start([[SOS]] * 12, **others)
        for place in range(3):
            real = features["decoder_mask"][rows, place] == 0
            np.testing.assert_allclose(logits[real], expected[rows[real], place], atol=2e-4)
            decoder.reorder(np.arange(12).reshape(4, 3)[:, [2, 0, 0]].reshape(-1))
            logits = decoder.append(ids[rows, place + 1])
    assert "compiled for each batch size" not in caplog.text
    assert (
        "contains 1 weights that are not used here: deeper" in caplog.text
    )  # by neither of the two


def test_blank_batches_have_the_shapes_of_data():
    features, labels = INPUTS.blank(tree()).element_spec
    assert features["encoder_input_ids"].shape.as_list() == [128, 24] == labels.shape.as_list()
    real, _ = INPUTS.train({**tree(), "runconfig": {"model_dir": None}}).element_spec
    assert {k: v.dtype for k, v in features.items()} == {k: v.dtype for k, v in real.items()}
    assert EOS == 3
