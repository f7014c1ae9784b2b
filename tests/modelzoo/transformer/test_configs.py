"""Tests of configs/params_transformer_*: each loads and has the published number of parameters."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.transformer.model import EncoderDecoder
from tests.modelzoo.configs import count, load, names_of
from tests.modelzoo.pages import cells_of

NAMES = names_of("params_transformer_*")
# Millions, for about 37,000 tokens: Vaswani et al. (2017), table 3.
PAPER = {"params_transformer_base": 65, "params_transformer_large": 213}
MULTI30K_VOCABULARY = 6000  # its file is made by cerebras-tf prepare vocab


def vocabulary(params):
    return params.train_input.src_vocab_size or MULTI30K_VOCABULARY


def formula(params):
    """Blocks of 4 h^2 an attention and 2 h f a feed-forward part, one embedding of V tokens.

    Attention has no biases; feed-forward parts, norms (before, and one after each sublayer) and the
    output have.
    """
    model = params.model
    h, f = model.hidden_size, model.filter_size
    feed_forward = 2 * h * f + f + h
    encoder = 4 * h * h + feed_forward + 2 * 2 * h
    decoder = 2 * 4 * h * h + feed_forward + 3 * 2 * h
    blocks = model.encoder_num_hidden_layers * encoder + model.decoder_num_hidden_layers * decoder
    return blocks + vocabulary(params) * (h + 1) + 2 * 2 * h


def build(params, monkeypatch):
    """Builds the model without memory for its variables, and returns those that are trained."""
    sizes = (vocabulary(params),) * 2
    monkeypatch.setattr("modelzoo.transformer.model.vocabulary_sizes", lambda section: sizes)
    with tf.Graph().as_default():
        ids = tf.zeros([2, 8], tf.int32)
        features = {"encoder_input_ids": ids, "encoder_mask": ids, "decoder_input_ids": ids}
        model = EncoderDecoder(params, training=False)
        model.logits(*model.decoder_output(features))
        return tf.trainable_variables()


@pytest.mark.parametrize("name", NAMES)
def test_config_has_its_number_of_parameters(name, monkeypatch):
    params = load(name)
    assert count(build(params, monkeypatch)) == formula(params)


@pytest.mark.parametrize("name", PAPER)
def test_published_sizes_are_those_of_the_paper(name):
    """The paper rounds, and says "about 37000 tokens": 4 % are allowed."""
    assert formula(load(name)) == pytest.approx(1e6 * PAPER[name], rel=0.04)


@pytest.mark.parametrize("name", PAPER)
def test_learning_rate_is_eleven_lines_through_the_inverse_root_of_the_step(name):
    pieces = load(name).optimizer.learning_rate
    assert [piece.steps for piece in pieces] == [4000] + 10 * [9600]
    step = 0
    for before, piece in zip((None, *pieces), pieces):
        step += piece.steps
        rate = (512 * (step + 1)) ** -0.5
        assert piece.end_learning_rate == pytest.approx(rate, rel=1e-9)
        start = before.end_learning_rate if before else 1e-7
        assert piece.initial_learning_rate == start
    assert pieces[-1].end_learning_rate == pytest.approx(1.39754e-4, rel=1e-5)


def test_variables_have_the_names_of_the_original_checkpoints(monkeypatch):
    """The tiny one has two layers a side; numbers of norms and dense layers run on."""
    names = {variable.op.name for variable in build(load("params_transformer_tiny"), monkeypatch)}
    expected = {"encoder_token_embedding/embedding_weights", "bias"}
    expected |= {
        f"pre_{side}_layer_norm/pre_{side}_layer_norm/{part}"
        for side in ("encoder", "decoder")
        for part in ("gamma", "beta")
    }
    attentions = [f"encoder/self_attention{n}" for n in ("", "_1")]
    attentions += [f"decoder/self_attention{n}" for n in ("", "_1")]
    attentions += [f"decoder/encoder_decoder_attention{n}" for n in ("", "_1")]
    projections = ("q_projection", "k_projection", "v_projection", "output_transform")
    expected |= {f"{a}/{p}/{p}/kernel" for a in attentions for p in projections}
    numbers = {"encoder/ffn": (0, 1), "encoder/ffn_1": (2, 3)}
    numbers |= {"decoder/ffn": (4, 5), "decoder/ffn_1": (6, 7)}
    for ffn, (first, second) in numbers.items():
        for number in (first, second):
            layer = f"dense_layer_{number}" if number else "dense_layer"
            expected |= {f"{ffn}/{layer}/{layer}/{part}" for part in ("kernel", "bias")}
    for number in range(10):
        norm = f"layer_normalization_layer_{number}" if number else "layer_normalization_layer"
        side = "encoder" if number < 4 else "decoder"
        expected |= {f"{side}/{norm}/{norm}/{part}" for part in ("gamma", "beta")}
    assert names == expected


def test_page_lists_every_config_with_its_dimensions():
    expected = {}
    for name in NAMES:
        m = load(name).model
        layers = f"{m.encoder_num_hidden_layers} + {m.decoder_num_hidden_layers}"
        sizes = [m.hidden_size, m.num_heads, m.filter_size, vocabulary(load(name))]
        expected[name] = [layers, *(f"{n:,}" for n in (*sizes, formula(load(name))))]
    assert cells_of("transformer") == expected
