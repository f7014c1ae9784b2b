"""Graph networks, metric learning, recommenders of numbers, augmentation, speech."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.e2e.both_sides import check, estimator
from tests.foreign.inputs import RANDOM, inputs, normal, spec, v1, variable
from tests.tolerances import TOLERANCES

pytestmark = pytest.mark.tf

# A graph of 6 nodes and 9 edges in each batch of one; sets of 4 examples else.
GRAPH = {
    "nodes": normal(8, 6, 5),
    "sources": RANDOM.integers(0, 6, (8, 9)),
    "targets": np.sort(RANDOM.integers(0, 6, (8, 9)), 1),
}
KINDS = {"kind": RANDOM.integers(0, 3, 8), "y": normal(8)}
ROWS = {"x": normal(8, 6), "ids": RANDOM.integers(0, 10, (8, 3)), "steps": normal(8, 7, 4)}


def dense(x, units, name, **options):
    start = v1.random_normal_initializer(stddev=0.4, seed=len(name))
    return v1.layers.dense(x, units, name=name, kernel_initializer=start, **options)


def squared(scores, labels, mode, **more):
    def loss():
        return tf.reduce_mean(tf.square(scores - labels["y"]))

    return spec(mode, loss, scores=scores, **more)


def graph(features):
    return features["nodes"][0], features["sources"][0], features["targets"][0]


def message_passing(features, labels, mode):
    """Messages along edges, reduced by mean, max, min and product; a readout of sorted segments."""
    nodes, sources, targets = graph(features)
    messages = dense(tf.gather(nodes, sources), 4, "messages", activation=tf.tanh)
    kinds = ("mean", "max", "min", "prod")
    found = [getattr(tf.math, f"unsorted_segment_{kind}")(messages, targets, 6) for kind in kinds]
    found[1:3] = [tf.clip_by_value(x, -2.0, 2.0) for x in found[1:3]]
    nodes = dense(tf.concat([nodes, *found], -1), 3, "update")
    pooled = tf.math.segment_sum(nodes, tf.constant([0, 0, 0, 0, 0, 0]))
    return squared(tf.reduce_sum(pooled, -1), labels, mode)


def graph_attention(features, labels, mode):
    """Attention over the edges of a node: a softmax by segments."""
    nodes, sources, targets = graph(features)
    hidden = dense(nodes, 4, "hidden")
    pairs = tf.concat([tf.gather(hidden, sources), tf.gather(hidden, targets)], -1)
    logits = tf.nn.leaky_relu(dense(pairs, 1, "logits")[:, 0])
    largest = tf.gather(tf.math.unsorted_segment_max(logits, targets, 6), targets)
    weights = tf.exp(logits - tf.stop_gradient(largest))
    total = tf.gather(tf.math.unsorted_segment_sum(weights, targets, 6), targets)
    sent = (weights / total)[:, None] * tf.gather(hidden, sources)
    scores = tf.reduce_mean(tf.math.unsorted_segment_sum(sent, targets, 6))
    return squared(scores[None], labels, mode)


def graph_convolution(features, labels, mode):
    """Products with the sparse matrix of the edges, normalized by degrees."""
    nodes, sources, targets = graph(features)
    ones = tf.ones([9])
    degree = 1 + tf.math.unsorted_segment_sum(ones, targets, 6)
    edges = tf.sparse.SparseTensor(tf.stack([targets, sources], 1), ones, [6, 6])
    hidden = tf.sparse.sparse_dense_matmul(edges, dense(nodes, 4, "one")) / degree[:, None]
    gate = tf.sigmoid(variable("gate", [9]))
    weighted = tf.SparseTensor(edges.indices, gate, [6, 6])
    hidden = tf.sparse.sparse_dense_matmul(weighted, tf.nn.relu(hidden), adjoint_a=True)
    return squared(tf.reduce_mean(hidden)[None], labels, mode)


def top_nodes(features, labels, mode):
    """Pooling of the best half of the nodes, by a learned score."""
    nodes, sources, targets = graph(features)
    score = tf.tanh(tf.linalg.matvec(nodes, tf.nn.l2_normalize(variable("direction", [5]))))
    values, chosen = tf.nn.top_k(score, k=tf.cast(tf.math.ceil(0.5 * 6), tf.int32))
    kept = tf.gather(nodes, chosen) * values[:, None]
    return squared(tf.reduce_mean(dense(kept, 3, "kept"))[None], labels, mode)


def embedded(features):
    return tf.nn.l2_normalize(dense(features["x"], 4, "embedding"), -1)


def triplets(features, labels, mode):
    """The hardest positive and negative of a batch."""
    x = embedded(features)

    def loss():
        apart = tf.reduce_sum(tf.square(x[:, None] - x[None]), -1)
        apart = tf.sqrt(tf.maximum(apart, 1e-12))
        same = tf.equal(labels["kind"][:, None], labels["kind"][None])
        near = tf.reduce_max(tf.where(same, apart, tf.zeros_like(apart)), 1)
        far = tf.reduce_min(tf.where(same, tf.fill(tf.shape(apart), 4.0), apart), 1)
        return tf.reduce_mean(tf.nn.softplus(near - far))

    return spec(mode, loss, x=x)


def angular_margin(features, labels, mode):
    """ArcFace: a margin added to the angle of the true class."""
    x = embedded(features)
    weights = tf.nn.l2_normalize(variable("weights", [4, 3]), 0)
    cosine = tf.clip_by_value(tf.matmul(x, weights), -0.99, 0.99)

    def loss():
        truth = tf.one_hot(labels["kind"], 3)
        logits = 4.0 * tf.cos(tf.acos(cosine) + 0.3 * truth)
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(truth, logits))

    return spec(mode, loss, cosine=cosine)


def contrastive(features, labels, mode):
    """SimCLR and a centre loss: two noisy views, moving centres by scatter."""
    noise = tf.random.stateless_normal(tf.shape(features["x"]), seed=[1, 2])
    views = tf.concat([features["x"], features["x"] + 0.1 * noise], 0)
    z = tf.nn.l2_normalize(dense(dense(views, 5, "hidden", activation=tf.nn.relu), 4, "z"), -1)
    similar = tf.matmul(z, z, transpose_b=True) / 0.5 - 1e9 * tf.eye(8)
    partner = tf.math.floormod(tf.range(8) + 4, 8)

    def loss():
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(partner, similar)
        centres = variable("centres", [3, 4])
        return tf.reduce_mean(entropy) + tf.nn.l2_loss(z[:4] - tf.gather(centres, labels["kind"]))

    return spec(mode, loss, z=z[:4])


def mixed_up(features, labels, mode):
    """Mixup of hidden states: shuffled rows, stateless weights of a shape from the data."""
    hidden = dense(features["x"], 5, "hidden", activation=tf.nn.relu)
    if mode == tf.estimator.ModeKeys.TRAIN:
        share = tf.random.stateless_uniform(tf.shape(hidden)[:1], [3, 4], 0.2, 0.8)[:, None]
        hidden = share * hidden + (1 - share) * tf.random.shuffle(hidden, seed=5)
        kept = tf.random.stateless_uniform(tf.shape(hidden), [7, 8]) < 0.9
        hidden = tf.where(kept, hidden / 0.9, tf.zeros_like(hidden))
    return squared(dense(hidden, 1, "scores")[:, 0], labels, mode)


def generator_of_numbers(features, labels, mode):
    """Noise and dropout of a tf.random.Generator, whose state is a variable."""
    hidden = dense(features["x"], 5, "hidden", activation=tf.nn.relu)
    if mode == tf.estimator.ModeKeys.TRAIN:
        made = tf.random.Generator.from_seed(11)
        hidden += 0.1 * made.normal([4, 5])
        with tf.control_dependencies([hidden]):
            hidden *= 1 + made.uniform(tf.shape(hidden), maxval=0.5)
    return squared(dense(hidden, 1, "scores")[:, 0], labels, mode)


def mutual_information(features, labels, mode):
    """MINE: a joint batch against one with shuffled indices."""
    x, code = features["x"], dense(features["x"], 2, "code")

    def judged(first, second):
        both = tf.concat([first, second], -1)
        with v1.variable_scope("judge", reuse=v1.AUTO_REUSE):
            return dense(dense(both, 4, "hidden", activation=tf.nn.elu), 1, "out")[:, 0]

    def loss():
        order = tf.random.shuffle(tf.range(tf.shape(x)[0]), seed=3)
        apart = judged(x, tf.gather(code, order))
        return tf.reduce_logsumexp(apart) - np.log(4) - tf.reduce_mean(judged(x, code))

    return spec(mode, loss, code=code)


def factorization_machine(features, labels, mode):
    """DeepFM and a cross layer over numeric ids, with pairwise ranking."""
    table = variable("table", [10, 4])
    fields = tf.nn.embedding_lookup(table, features["ids"])
    both = tf.square(tf.reduce_sum(fields, 1)) - tf.reduce_sum(tf.square(fields), 1)
    flat = tf.reshape(fields, [4, 12])
    crossed = flat * tf.reduce_sum(flat * variable("cross", [12]), -1, keepdims=True) + flat
    scores = 0.5 * tf.reduce_sum(both, 1) + dense(crossed, 1, "deep")[:, 0]

    def loss():
        better = labels["y"][:, None] > labels["y"][None]
        margin = tf.boolean_mask(scores[:, None] - scores[None], better)
        return tf.reduce_sum(tf.nn.softplus(-margin)) / 6

    return spec(mode, loss, scores=scores)


def ranked_list(features, labels, mode):
    """ListNet, and a cumulative likelihood of the sorted list."""
    scores = dense(features["x"], 1, "scores")[:, 0]

    def loss():
        order = tf.argsort(labels["y"], direction="DESCENDING", stable=True)
        sorted_scores = tf.gather(scores, order)
        likelihood = tf.math.cumulative_logsumexp(sorted_scores, reverse=True) - sorted_scores
        listed = tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(labels["y"]), scores)
        return tf.reduce_mean(likelihood) + listed

    return spec(mode, loss, scores=scores)


def mixture_of_experts(features, labels, mode):
    """Two of four experts by noisy gates; their rows partitioned and stitched."""
    gates = tf.nn.softmax(dense(features["x"], 4, "gates"))
    values, chosen = tf.nn.top_k(gates, 2)
    mask = tf.reduce_sum(tf.one_hot(chosen, 4) * values[..., None], 1)
    experts = tf.stack([dense(features["x"], 3, f"expert_{i}") for i in range(4)], 1)
    best = tf.argmax(gates, -1, output_type=tf.int32)
    parts = tf.dynamic_partition(features["x"], best, 4)
    places = tf.dynamic_partition(tf.range(4), best, 4)
    own = [tf.matmul(part, variable(f"own_{i}", [6, 3])) for i, part in enumerate(parts)]
    own = tf.dynamic_stitch(places, own)
    hidden = tf.reduce_sum(experts * mask[..., None], 1) + tf.reshape(own, [4, 3])
    return squared(tf.reduce_sum(hidden, -1), labels, mode)


def speech(features, labels, mode):
    """CTC over convolutions in time; a beam search in the session."""
    hidden = v1.layers.conv1d(
        features["steps"],
        5,
        3,
        padding="same",
        activation=tf.nn.relu,
        name="time",
        kernel_initializer=v1.random_normal_initializer(stddev=0.3, seed=1),
    )
    logits = tf.transpose(dense(hidden, 5, "logits"), [1, 0, 2])
    lengths = tf.fill([4], 7)
    beams, _ = tf.nn.ctc_beam_search_decoder(logits, lengths, beam_width=3)
    decoded = tf.sparse.to_dense(beams[0], default_value=-1)
    decoded = tf.pad(decoded, [[0, 0], [0, 7 - tf.shape(decoded)[1]]], constant_values=-1)

    def loss():
        sparse = tf.sparse.from_dense(tf.stack([labels["kind"] + 1, 3 - labels["kind"]], 1))
        return tf.reduce_mean(v1.nn.ctc_loss(tf.cast(sparse, tf.int32), logits, lengths))

    return spec(mode, loss, decoded=decoded)


ON_GRAPHS = [message_passing, graph_attention, graph_convolution, top_nodes]
ON_ROWS = [
    triplets, angular_margin, contrastive, generator_of_numbers, mixed_up, mutual_information,
    factorization_machine, ranked_list, mixture_of_experts, speech,
]  # fmt: skip


@pytest.mark.parametrize("model", ON_GRAPHS, ids=lambda model: model.__name__)
def test_graph_network_does_on_the_wafer_as_on_the_host(model, tmp_path):
    check(model, tmp_path, inputs=inputs(GRAPH, KINDS, batch=1))


@pytest.mark.parametrize("model", ON_ROWS, ids=lambda model: model.__name__)
def test_model_of_rows_does_on_the_wafer_as_on_the_host(model, tmp_path):
    check(model, tmp_path, inputs=inputs(ROWS, KINDS))


@pytest.mark.slow
def test_curve_of_a_ctc_model_follows_the_hosts_over_300_steps(tmp_path):
    curves = []
    for use_cs in (False, True):
        losses: list[float] = []
        made = estimator(speech, tmp_path / str(use_cs), use_cs, losses)
        made.train(lambda: inputs(ROWS, KINDS)().repeat(), max_steps=300)
        curves.append(losses)
    assert curves[0][-1] < 0.3 * curves[0][0]
    relative, absolute = TOLERANCES["training_variable"]
    np.testing.assert_allclose(curves[1], curves[0], rtol=relative, atol=absolute)
