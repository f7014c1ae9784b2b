"""Padding left out: the same numbers where it is proved, the right node named where it is not."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from cerebras_tf.errors import PaddingError
from cerebras_tf.ir import Dim, print_graph
from cerebras_tf.passes.remove_padding import remove_padding
from tests.graphs import ops_of
from tests.messages import raises
from tests.token_steps import (
    BATCH,
    HEADS,
    LENGTH,
    LENGTHS,
    VOCABULARY,
    WIDTH,
    TokenStep,
    arrays_of,
    computed,
)


def encoded(s, seed=None, mask="mask"):
    """Two layers of an encoder: hidden states [B, S, H], and the mask as a feature."""
    hidden = s.tokens(mask)
    bias = s.mask_bias(hidden)
    x = s.embed(s.tokens())
    for layer in range(2):
        x = s.feed(s.attend(x, bias, seed=None if seed is None else seed + layer))
        if seed is not None:
            x = s.dropout(x, seed + 10 + layer)
    return x, hidden


def decoded(s, seed=None):
    """Two layers of a causal decoder."""
    x = s.embed(s.tokens())
    for layer in range(2):
        x = s.feed(s.attend(x, causal=True, seed=None if seed is None else seed + layer))
    return x


def keep(s, mask):
    """1 where a token is real [B, S]."""
    return s.b.op("sub", 1.0, s.b.op("cast", mask, dtype="float32"))


def classifier(s, seed=None):
    x, _ = encoded(s, seed)
    logits = s.matmul(s.first(x), s.trained("out/kernel", WIDTH, 3))
    labels = s.feature("labels", s.batch, dtype="int32")
    loss = s.b.multi("sparse_softmax_xent", logits, s.b.op("trunc_mod", labels, 3))[0]
    return s.learn(s.b.op("mean", loss, axes=(0,), keepdims=False), logits=logits)


def tagger(s, seed=None):
    x, mask = encoded(s, seed)
    losses = s.b.op("mul", s.token_losses(x, s.tokens("labels")), keep(s, mask))
    return s.learn(s.b.op("div", s.total(losses), s.total(keep(s, mask))), losses=losses)


def pooled(s, seed=None):
    """The mean of each sequence's real tokens."""
    x, mask = encoded(s, seed)
    kept = keep(s, mask)
    wide = s.b.op("reshape", kept, shape=(s.batch, s.length, 1))
    total = s.b.op("sum", s.b.op("mul", x, wide), axes=(1,), keepdims=False)
    count = s.b.op("sum", wide, axes=(1,), keepdims=False)
    return s.learn(s.total(s.b.op("tanh", s.b.op("div", total, count))))


def masked_mean(s, seed=None):
    """A mean over all places, of which padded ones hold 0."""
    x, mask = encoded(s, seed)
    losses = s.b.op("mul", s.token_losses(x, s.tokens("labels")), keep(s, mask))
    return s.learn(s.b.op("mean", losses, axes=(0, 1), keepdims=False))


def spans(s, seed=None):
    """Where an answer begins: cross-entropy over the tokens of each sequence, padding hidden."""
    x, mask = encoded(s, seed)
    logits = s.b.op("reshape", s.dense(x, 1), shape=(s.batch, s.length))
    hidden = s.b.op("mul", s.b.op("cast", mask, dtype="float32"), -1e4)
    starts = s.b.op("mul", s.feature("starts", s.batch, dtype="int32"), 0)
    losses = s.b.multi("sparse_softmax_xent", s.b.op("add", logits, hidden), starts)[0]
    return s.learn(s.total(losses))


def masked_words(s, seed=None):
    """Tokens at positions that are data, some of which do not count."""
    x, _ = encoded(s, seed)
    at = s.b.op("trunc_mod", s.feature("at", s.batch, 3, dtype="int32"), 1)
    words = s.b.op("gather", x, at, axis=1, batch_dims=1)
    flat = s.b.op("reshape", words, shape=(s.batch * 3, WIDTH))
    kernel = s.trained("out/kernel", WIDTH, VOCABULARY)
    labels = s.b.op("reshape", s.feature("words", s.batch, 3, dtype="int32"), shape=(s.batch * 3,))
    losses = s.b.multi("linear_softmax_xent", flat, kernel, labels, transpose_weight=False)[0]
    counted = s.b.op("trunc_mod", s.feature("counted", s.batch, 3, dtype="int32"), 2)
    counted = s.b.op("reshape", s.b.op("cast", counted, dtype="float32"), shape=(s.batch * 3,))
    return s.learn(s.total(s.b.op("mul", losses, counted)))


def language_model(s, seed=None):
    x = decoded(s, seed)
    weights = s.tokens("weights", "float32")
    losses = s.b.op("mul", s.token_losses(x, s.tokens("labels")), weights)
    return s.learn(s.b.op("div", s.total(losses), s.total(weights)))


def causal_bias(s, window=None):
    """One mask [B, 1, S, S] of later tokens, padding and what is before a window, and its bias."""
    b = s.b
    place = b.op("iota", size=s.length, start=0, step=1, dtype="int32")
    row = b.op("reshape", place, shape=(1, 1, s.length, 1))
    seen = b.op("less_equal", place, row)
    if window is not None:
        first = b.op("sub", row, b.constant(window, "int32"))
        seen = b.op("logical_and", b.op("greater", place, first), seen)
    real = b.op("equal", s.tokens("mask"), 0)
    real = b.op("reshape", real, shape=(s.batch, 1, 1, s.length))
    seen = b.op("logical_and", seen, real)
    return seen, b.op("select", seen, b.constant(0.0, "float32"), b.constant(-1e9, "float32"))


def grouped(s, seed=None, window=None):
    """A decoder as PyTorch has it: one mask, heads of keys repeated, 0 where no key is seen."""
    b, width = s.b, WIDTH // HEADS
    swap, heads = {"permutation": (0, 2, 1, 3)}, (s.batch, s.length, HEADS, width)
    seen, bias = causal_bias(s, window)
    x = s.embed(s.tokens())
    q = b.op("reshape", s.dense(x), shape=heads)
    tensors = [q]
    for _ in range(2):
        y = b.op("reshape", s.dense(x, width), shape=(s.batch, s.length, 1, width))
        y = b.op("reshape", b.op("transpose", y, **swap), shape=(s.batch, 1, 1, s.length, width))
        y = b.op("broadcast_to", y, shape=(s.batch, 1, HEADS, s.length, width))
        y = b.op("reshape", y, shape=(s.batch, HEADS, s.length, width))
        tensors.append(b.op("transpose", y, **swap))
    out = b.op(
        "transpose", b.multi("attention", *tensors, bias, scale=0.5, causal=False)[0], **swap
    )
    out = b.op("select", b.op("any", seen, axes=(3,), keepdims=True), out, 0.0)
    out = b.op("reshape", b.op("transpose", out, **swap), shape=(s.batch, s.length, WIDTH))
    kept = keep(s, s.step.features["mask"])
    return s.learn(s.total(b.op("mul", s.token_losses(s.feed(out), s.tokens("labels")), kept)))


def turned(s, seed=None):
    """Rotations of heads in the order [B, A, S, D], by constants of positions."""
    b, x = s.b, s.embed(s.tokens())
    heads = (s.batch, s.length, HEADS, WIDTH // HEADS)
    angles = np.random.default_rng(1).standard_normal((1, 1, LENGTH, WIDTH // HEADS)).astype("f")
    tensors = []
    for _ in range(3):
        y = b.op("transpose", b.op("reshape", s.dense(x), shape=heads), permutation=(0, 2, 1, 3))
        tensors.append(b.op("transpose", b.op("mul", y, angles), permutation=(0, 2, 1, 3)))
    out, _ = b.multi("attention", *tensors, scale=0.5, causal=True)
    x = s.feed(b.op("reshape", out, shape=(s.batch, s.length, WIDTH)))
    losses = b.op("mul", s.token_losses(x, s.tokens("labels")), s.tokens("weights", "float32"))
    return s.learn(s.total(losses))


def translator(s, seed=None):
    """Encoder, decoder, and attention of one to the other; both lengths are equal."""
    memory, mask = encoded(s, seed)
    bias = s.mask_bias(mask)
    y = s.embed(s.tokens("target_ids"), "target")
    y = s.attend(s.attend(y, causal=True), bias, memory, seed=seed)
    weights = s.tokens("weights", "float32")
    return s.learn(s.total(s.b.op("mul", s.token_losses(s.feed(y), s.tokens("labels")), weights)))


def by_activations(s, seed=None):
    """Gradients by embeddings, as optimizers of sparse rows take them."""
    ids = s.tokens()
    x = s.embed(ids)
    y = s.feed(s.attend(x, s.mask_bias(s.tokens("mask")), seed=seed))
    loss = s.total(s.b.op("tanh", s.first(y)))
    words = x.node.inputs[0]
    (dx,) = s.b.multi("gradient", loss, words, ys=1, dys=(False,), xs=1)
    return s.done(loss=loss, dx=dx, squares=s.total(s.b.op("square", dx)))


STRIPPED = [
    by_activations,
    classifier,
    tagger,
    pooled,
    masked_mean,
    spans,
    masked_words,
    language_model,
    turned,
    translator,
    grouped,
]


def check_stripped(build, seed, **sizes):
    padded, packed = build(TokenStep(**sizes), seed), build(TokenStep(**sizes), seed)
    assert remove_padding(packed, restore=True) is None
    assert "packed_attention" in ops_of(packed.graph) and "attention" not in ops_of(packed.graph)
    wanted = computed(padded, arrays_of(padded))
    found = computed(packed, arrays_of(padded))
    assert set(found) == set(wanted)
    # Gradients that are 0 but for rounding, as of the keys' bias, are so of all the others' size.
    largest = max(np.abs(value).max() for value in wanted.values())
    for name in wanted:
        np.testing.assert_allclose(
            found[name], wanted[name], rtol=1e-5, atol=1e-6 * largest, err_msg=name
        )
    return found


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("build", STRIPPED)
def test_losses_and_gradients_are_those_with_padding(build, seed):
    check_stripped(build, seed)


@pytest.mark.parametrize("build", [classifier, tagger, language_model, translator, grouped])
def test_sizes_may_differ_from_batch_to_batch(build):
    """Positions have a fixed number, so only the number of sequences is a symbol here."""
    check_stripped(build, None, batch=Dim.symbol("B", 16))


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("build", STRIPPED)
def test_what_stands_at_padded_places_changes_no_bit(build, seed):
    """The oracle of the proof: other ids and labels in padding, the same results."""
    results = []
    for garbage in (1, 2):
        step = build(TokenStep(), seed)
        assert remove_padding(step, restore=True) is None
        results.append(computed(step, arrays_of(step_of_features(build, seed), garbage=garbage)))
    for name, value in results[0].items():
        np.testing.assert_array_equal(value, results[1][name], err_msg=name)


def step_of_features(build, seed):
    return build(TokenStep(), seed)


@pytest.mark.parametrize("build", STRIPPED)
def test_not_a_number_at_padded_places_reaches_nothing(build):
    """A position that no token has is looked up in padding: the plain kernels would raise."""
    step = build(TokenStep(), None)
    arrays = arrays_of(step)
    padded = np.arange(LENGTH) >= LENGTHS[:, None]
    for name in ("ids", "labels", "target_ids"):
        if name in arrays and arrays[name].shape == padded.shape:
            arrays[name][padded] = 10**6
    assert remove_padding(step, restore=True) is None
    assert all(np.isfinite(value).all() for value in computed(step, arrays).values())


# What must keep padding in, and the op that is named.


def mean_pooling(s):
    x, _ = encoded(s)
    return s.total(s.b.op("mean", x, axes=(1,), keepdims=False))


def batch_norm(s):
    x, _ = encoded(s)
    centred = s.b.op("sub", x, s.b.op("mean", x, axes=(0, 1), keepdims=True))
    return s.total(s.first(centred))


def convolution(s):
    x, _ = encoded(s)
    wide = s.b.op("reshape", x, shape=(BATCH, 1, LENGTH, WIDTH))
    kernel = s.trained("conv", 1, 3, WIDTH, WIDTH)
    attrs = {"strides": (1, 1), "padding": ((0, 0), (1, 1)), "dilations": (1, 1)}
    return s.total(s.b.op("conv2d", wide, kernel, **attrs))


def no_mask(s):
    return s.total(s.first(s.attend(s.embed(s.tokens()))))


def penalty(s):
    x, _ = encoded(s)
    return s.b.op("add", s.total(s.first(x)), s.total(s.b.op("square", x)))


def loss_of_all(s):
    x, _ = encoded(s)
    losses = s.token_losses(x, s.tokens("labels"))
    return s.b.op("mean", losses, axes=(0, 1), keepdims=False)


def projected_keys(s):
    x, _ = encoded(s)
    turned = s.b.op("transpose", x, permutation=(0, 2, 1))
    few = s.b.op(
        "matmul", turned, s.trained("few", LENGTH, 3), transpose_a=False, transpose_b=False
    )
    return s.total(few)


def largest_over_time(s):
    x, _ = encoded(s)
    return s.total(s.b.op("max", x, axes=(1,), keepdims=False))


def attention_pooling(s):
    x, _ = encoded(s)
    scores = s.b.op("reshape", s.dense(x, 1), shape=(BATCH, LENGTH))
    return s.total(s.b.op("softmax", scores))


def learnt_mask(s):
    ids = s.tokens()
    x = s.embed(ids)
    scores = s.b.op("reshape", s.dense(x, 1), shape=(BATCH, 1, 1, LENGTH))
    return s.total(s.first(s.attend(x, scores)))


def inverted(s):
    """Real where attention says padding."""
    x, mask = encoded(s)
    losses = s.token_losses(x, s.tokens("labels"))
    return s.total(s.b.op("mul", losses, s.b.op("add", keep(s, mask), 1.0)))


def two_masks(s):
    x = s.embed(s.tokens())
    x = s.attend(x, s.mask_bias(s.tokens("mask")))
    return s.total(s.first(s.attend(x, s.mask_bias(s.tokens("mask_2")))))


def recurrent(s):
    x, _ = encoded(s)
    return s.total(s.first(s.b.op("cumsum", x, axis=1, exclusive=False, reverse=True)))


def negatives(s):
    x, _ = encoded(s)
    flat = s.b.op("reshape", x, shape=(BATCH * LENGTH, WIDTH))
    pairs = s.b.op("matmul", flat, flat, transpose_a=False, transpose_b=True)
    return s.total(pairs)


def shifted(s):
    x, _ = encoded(s)
    sizes = (BATCH, LENGTH - 1, WIDTH)
    return s.total(s.b.op("slice", x, starts=(0, 1, 0), sizes=sizes, strides=(1, 1, 1)))


def by_what_is_computed(s):
    """A gradient by states that a mask makes 0: it is not 0 itself at padding."""
    x, mask = encoded(s)
    kept = s.b.op("mul", x, s.b.op("reshape", keep(s, mask), shape=(s.batch, s.length, 1)))
    total = s.total(kept)
    (dx,) = s.b.multi("gradient", total, kept, ys=1, dys=(False,), xs=1)
    return s.b.op("add", total, s.total(s.b.op("square", dx)))


REFUSED = {
    mean_pooling: "mean",
    batch_norm: "mean",
    convolution: "reshape",
    no_mask: "attention",
    penalty: "sum",
    loss_of_all: "mean",
    projected_keys: "matmul",
    largest_over_time: "max",
    attention_pooling: "softmax",
    learnt_mask: "reshape|attention",
    two_masks: "two masks",
    recurrent: "cumsum",
    negatives: "matmul",
    shifted: "slice",
    by_what_is_computed: "gradient",
}


@pytest.mark.parametrize("build", REFUSED)
def test_what_reads_padding_keeps_it_in_and_is_named(build):
    s = TokenStep()
    step = s.done(loss=build(s))
    before = print_graph(step.graph)
    reason = remove_padding(step)
    assert reason is not None and reason.startswith("padding is not removed: ")
    assert any(word in reason for word in REFUSED[build].split("|")), reason
    assert print_graph(step.graph) == before and step.packing is None


def test_predictions_of_every_token_leave_only_where_that_is_asked_for():
    def build():
        s = TokenStep()
        x, _ = encoded(s)
        return s.done(hidden=x, loss=s.total(s.first(x)))

    assert "layer_norm" in remove_padding(build())
    step = build()
    wanted = computed(build(), arrays_of(build()))["hidden"]
    assert remove_padding(step, restore=True) is None
    found = computed(step, arrays_of(build()))["hidden"]
    real = np.arange(LENGTH) < LENGTHS[:, None]
    np.testing.assert_allclose(found[real], wanted[real], rtol=1e-5, atol=1e-5)
    assert not found[~real].any()
    step = build()
    assert remove_padding(step, optional=frozenset({"hidden"})) is None
    assert set(step.results) == {"loss"}


@pytest.mark.parametrize("build", [language_model, translator])
def test_padding_that_only_weights_show_is_removed_on_request(build):
    step = build(TokenStep())
    before = print_graph(step.graph)
    assert remove_padding(step) == "" and step.packing is None
    assert print_graph(step.graph) == before
    assert remove_padding(step, restore=True) is None
    assert step.packing is not None


def test_a_step_without_attention_is_left_alone():
    s = TokenStep()
    step = s.done(loss=s.total(s.embed(s.tokens())))
    assert remove_padding(step) == ""
    assert "no attention" in remove_padding(step, restore=True)


# What only the batch can tell.


def refused(build, **changed):
    step = build(TokenStep(), None)
    arrays = arrays_of(step)
    arrays.update(changed)
    assert remove_padding(step) is None
    with pytest.raises(PaddingError) as raised:
        computed(step, arrays)
    return str(raised.value)


MASK = (np.arange(LENGTH) >= LENGTHS[:, None]).astype("int32")


def test_a_sequence_of_padding_alone_is_found():
    mask = MASK.copy()
    mask[2] = 1
    assert "sequence 2 of the batch consists of padding only" in refused(classifier, mask=mask)


def test_padding_may_be_anywhere():
    mask = MASK[:, ::-1].copy()
    mask[1, 4:6] = 1
    for build in (tagger, grouped):
        padded, packed = build(TokenStep()), build(TokenStep())
        assert remove_padding(packed, optional=frozenset({"losses"})) is None
        given = {**arrays_of(padded), "mask": mask}
        wanted, found = computed(padded, given), computed(packed, given)
        for name in found:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-5)


def test_padding_in_front_is_found_where_numbers_are_drawn_by_position():
    mask = MASK.copy()
    mask[3] = mask[3, ::-1]

    def dropped(s, seed):
        x, hidden = encoded(s, seed=3)
        losses = s.b.op("mul", s.token_losses(x, s.tokens("labels")), keep(s, hidden))
        return s.learn(s.total(losses))

    assert "sequence 3 of the batch has padding before" in refused(dropped, mask=mask)
    assert "reads at a position that is padding" in refused(classifier, mask=mask)


def test_a_causal_mask_is_not_computed():
    step = grouped(TokenStep())
    assert remove_padding(step) is None
    assert not {"any", "less_equal", "logical_and"} & set(ops_of(step.graph))


def test_a_sequence_longer_than_a_window_is_found():
    def build(s, seed):
        return grouped(s, window=5)

    assert "sees 5 tokens, and sequence 1 of the batch is longer" in refused(build)
    short = np.maximum(MASK, np.arange(LENGTH) >= 5).astype("int32")
    padded, packed = build(TokenStep(), None), build(TokenStep(), None)
    assert remove_padding(packed) is None
    given = {**arrays_of(padded), "mask": short}
    wanted, found = computed(padded, given)["loss"], computed(packed, given)["loss"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_mask_that_hides_in_part_is_found():
    s = TokenStep()
    x = s.embed(s.tokens())
    loss = s.total(s.first(s.attend(x, s.mask_bias(s.tokens("mask"), hidden=-100.0))))
    step = s.learn(loss)
    arrays = arrays_of(step)
    assert remove_padding(step) is None
    with raises(PaddingError, "-10000"):
        computed(step, arrays)


def test_a_mask_that_hides_all_of_a_sequence_is_found():
    """A softmax over what is hidden depends on all that is hidden, padding too."""

    def chosen(s, seed):
        x, _ = encoded(s)
        logits = s.b.op("reshape", s.dense(x, 1), shape=(s.batch, s.length))
        hidden = s.b.op("mul", s.b.op("cast", s.tokens("barred"), dtype="float32"), -1e4)
        starts = s.b.op("mul", s.feature("starts", s.batch, dtype="int32"), 0)
        losses = s.b.multi("sparse_softmax_xent", s.b.op("add", logits, hidden), starts)[0]
        return s.learn(s.total(losses))

    barred = MASK.copy()
    barred[2] = 1
    assert "adds a mask that hides all of a sequence" in refused(chosen, barred=barred)


def test_a_weight_of_padding_is_found():
    def weighted(s, seed):
        x, _ = encoded(s)
        weights = s.tokens("factor", "float32")
        return s.learn(s.total(s.b.op("mul", s.token_losses(x, s.tokens("labels")), weights)))

    said = refused(weighted, factor=np.ones((BATCH, LENGTH), "f"))
    assert "multiplies padding by a number that is not 0" in said


def test_an_inverted_mask_is_found():
    def build(s, seed):
        return s.learn(inverted(s))

    assert "multiplies padding by a number that is not 0" in refused(build)


def test_a_position_that_is_padding_is_found():
    def second(s, seed):
        x, _ = encoded(s)
        sizes = (BATCH, 1, WIDTH)
        return s.learn(
            s.total(s.b.op("slice", x, starts=(0, 1, 0), sizes=sizes, strides=(1, 1, 1)))
        )

    assert "reads at a position that is padding" in refused(second)


def test_a_position_of_the_data_that_is_padding_is_found():
    def listed(s, seed):
        x, _ = encoded(s)
        at = s.feature("at", BATCH, 3, dtype="int32")
        return s.learn(s.total(s.b.op("gather", x, at, axis=1, batch_dims=1)))

    inside = np.zeros((BATCH, 3), "int32")
    inside[0] = [0, 2, 1]
    step = listed(TokenStep(), None)
    padded = computed(listed(TokenStep(), None), {**arrays_of(step), "at": inside})
    given = {**arrays_of(step), "at": inside}
    assert remove_padding(step) is None
    np.testing.assert_allclose(computed(step, given)["loss"], padded["loss"], rtol=1e-5)
    outside = copy.copy(inside)
    outside[0, 1] = 3
    assert "reads at a position that is padding" in refused(listed, at=outside)
