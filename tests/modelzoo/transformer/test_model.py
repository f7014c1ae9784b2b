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


def random_values(variables, session):
    """Gives every variable random values, so that norms and biases matter; returns them by name."""
    rng = np.random.default_rng(2)
    values = {v.op.name: rng.normal(0, 0.3, v.shape.as_list()).astype("f") for v in variables}
    # In one run: each run of another operation prepares the whole graph anew.
    feeds = {v.initializer.inputs[1]: values[v.op.name] for v in variables}
    session.run([v.initializer for v in variables], feeds)
    return values


def sinusoids(length, size):
    """Vaswani et al. (2017), section 3.5, with tensor2tensor's rates, interleaved."""
    table = np.zeros((length, size))
    for channel in range(size // 2):
        rate = 10000.0 ** (-channel / (size // 2 - 1))
        table[:, 2 * channel] = np.sin(np.arange(length) * rate)
        table[:, 2 * channel + 1] = np.cos(np.arange(length) * rate)
    return table


class Oracle:
    """The model of the tiny configuration in NumPy, float64, from its variables by name."""

    def __init__(self, values, heads, pre):
        self.values = {name: value.astype(np.float64) for name, value in values.items()}
        self.heads, self.pre = heads, pre

    def layer(self, x, name):
        values = [self.values.get(f"{name}/{part}") for part in ("kernel", "bias")]
        return x @ values[0] + (0 if values[1] is None else values[1])

    def norm(self, x, name):
        name = f"{name}/{name.split('/')[-1]}"
        centered = x - x.mean(-1, keepdims=True)
        scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * self.values[f"{name}/gamma"] + self.values[f"{name}/beta"]

    def attend(self, x, memory, hidden, name):
        """`hidden` [B, S, M] is true where a key is not seen."""
        out = np.zeros(x.shape)
        q, k, v = (
            self.layer(y, f"{name}/{kind}_projection/{kind}_projection")
            for y, kind in ((x, "q"), (memory, "k"), (memory, "v"))
        )
        size = x.shape[-1] // self.heads
        for head in range(self.heads):
            part = slice(head * size, (head + 1) * size)
            scores = q[..., part] @ k[..., part].swapaxes(1, 2) / np.sqrt(size)
            scores = np.exp(scores - 1e4 * hidden)
            total = scores.sum(-1, keepdims=True)
            out[..., part] = scores / np.where(total == 0, 1, total) @ v[..., part]
        return self.layer(out, f"{name}/output_transform/output_transform")

    def embed(self, ids, side):
        table = self.values["encoder_token_embedding/embedding_weights"]
        x = table[ids] * np.sqrt(table.shape[1]) + sinusoids(ids.shape[1], table.shape[1])
        return x if self.pre else self.norm(x, f"pre_{side}_layer_norm")

    def around(self, x, sublayer, number, side):
        name = f"{side}/layer_normalization_layer" + (f"_{number}" if number else "")
        if self.pre:
            return x + sublayer(self.norm(x, name))
        return self.norm(x + sublayer(x), name)

    def feed_forward(self, x, side, index, first):
        ffn = f"{side}/ffn" + (f"_{index}" if index else "")
        names = [f"dense_layer_{n}" if n else "dense_layer" for n in (first, first + 1)]
        wide = np.maximum(self.layer(x, f"{ffn}/{names[0]}/{names[0]}"), 0)
        return self.layer(wide, f"{ffn}/{names[1]}/{names[1]}")

    def block(self, x, side, index, first_norm, first_dense, attended):
        """`attended`: for each attention its name, its memory (None: x) and what is hidden."""
        suffix = f"_{index}" if index else ""
        for place, (name, memory, hidden) in enumerate(attended):

            def attend(y, name=name, memory=memory, hidden=hidden):
                other = y if memory is None else memory
                return self.attend(y, other, hidden, f"{side}/{name}{suffix}")

            x = self.around(x, attend, first_norm + place, side)

        def feed(y):
            return self.feed_forward(y, side, index, first_dense)

        return self.around(x, feed, first_norm + len(attended), side)

    def logits(self, features):
        ids, mask = features["encoder_input_ids"], features["encoder_mask"].astype(bool)
        hidden = np.repeat(mask[:, None], ids.shape[1], axis=1)
        x = self.embed(ids, "encoder")
        for i in range(2):
            own = [("self_attention", None, hidden)]
            x = self.block(x, "encoder", i, 2 * i, 2 * i, own)
        memory = self.norm(x, "post_encoder_layer_norm") if self.pre else x
        ids = features["decoder_input_ids"]
        later = np.triu(np.ones((ids.shape[1],) * 2, bool), 1)[None]
        x = self.embed(ids, "decoder")
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
        oracle = Oracle(random_values(tf.trainable_variables(), session), 2, pre)
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
            values = random_values(tf.trainable_variables(), session)
            losses[rate] = session.run(spec.loss)
    logits = Oracle(values, 2, pre=False).logits(features)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    own = np.take_along_axis(log_probs, features["labels"][..., None], axis=-1)[..., 0]
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
        random_values(tf.trainable_variables(), session)
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
    assert "a program of its own" not in caplog.text
    assert "holds 1 weights that are not used here: deeper" in caplog.text  # by neither of the two


def test_blank_batches_have_the_shapes_of_data():
    features, labels = INPUTS.blank(tree()).element_spec
    assert features["encoder_input_ids"].shape.as_list() == [128, 24] == labels.shape.as_list()
    real, _ = INPUTS.train({**tree(), "runconfig": {"model_dir": None}}).element_spec
    assert {k: v.dtype for k, v in features.items()} == {k: v.dtype for k, v in real.items()}
    assert EOS == 3


def test_tensorflow_does_not_tune_the_input():
    params = {**tree(), "runconfig": {"model_dir": None}}
    for name in ("train_input", "eval_input", "predict_input"):
        assert INPUTS.without_data(name)(params).options().autotune.enabled is False
    for input_fn in (INPUTS.train, INPUTS.eval, INPUTS.predict):
        assert input_fn(params).options().autotune.enabled is False
