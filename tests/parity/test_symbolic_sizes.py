"""One graph for all sizes of a batch: bound to some, it has TensorFlow's numbers at those."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")

from cerebras_tf.errors import GraphError, SizeLimitError, UnsupportedOpError
from cerebras_tf.ir import Dim, TensorType
from cerebras_tf.ir.dimensions import UNLIMITED
from tests.parity.symbolic import B, S, T, captured, check_symbolic

pytestmark = pytest.mark.tf

X = TensorType("float32", (B, S, 4))
Y = TensorType("float32", (B, T, 4))
IDS = TensorType("int32", (B, S))


def _length(x):
    return tf.shape(x)[1]


def _causal(x):
    visible = tf.linalg.band_part(tf.ones([_length(x), _length(x)]), -1, 0)
    return x * tf.reduce_sum(visible, 1)[:, None]


def _masked_by_ranges(x):
    places = tf.range(_length(x))
    hidden = tf.cast(places[None, :] > places[:, None], tf.float32) * -1e4
    scores = tf.matmul(x, x, transpose_b=True) + hidden
    return tf.matmul(tf.nn.softmax(scores), x)


def _heads(x):
    y = tf.reshape(x, [-1, _length(x), 2, 2])
    y = tf.transpose(y, [0, 2, 1, 3])
    return tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [-1, _length(x), 4])


def _batch_norm(x):
    images = tf.reshape(x, [-1, 2, 2, tf.shape(x)[1]])[..., :1]
    scale = tf.ones([1])
    y, mean, variance = tf.compat.v1.nn.fused_batch_norm(images, 2.0 * scale, scale)
    return [y, tf.stop_gradient(mean), tf.stop_gradient(variance)]


def _padded(x):
    return tf.pad(x, [[0, 0], [0, 8 - _length(x)], [1, 0]])


def _smoothed(x):
    classes = tf.cast(tf.shape(x)[2] * _length(x), tf.float32)
    flat = tf.reshape(x, [tf.shape(x)[0], -1])
    return tf.reduce_sum(flat * (0.9 + 0.1 / classes), axis=1)


def _images(x):
    return tf.reshape(x, [-1, 2, 2, 1])


OF_ONE = [
    ("dense", lambda x: tf.reshape(tf.matmul(tf.reshape(x, [-1, 4]), tf.eye(4)), tf.shape(x))),
    ("heads", _heads),
    ("flat", lambda x: tf.reshape(x, [-1])),
    ("two_to_one", lambda x: tf.reshape(x, [tf.reduce_prod(tf.shape(x)[:-1]), 4])),
    ("by_vector", lambda x: tf.reshape(x, tf.concat([tf.shape(x)[:2], [2, 2]], 0))),
    ("doubled", lambda x: tf.reshape(x, tf.shape(x) * [2, 1, 1] // [1, 1, 2])),
    ("gathered_shape", lambda x: tf.reshape(x, tf.gather(tf.shape(x), [1, 0, 2]))),
    ("mean_of_all", lambda x: tf.reduce_mean(tf.square(x))),
    ("mean_of_lengths", lambda x: tf.reduce_mean(tf.square(x), 1)),
    ("by_size", lambda x: tf.reduce_sum(x * x) / tf.cast(tf.size(x), tf.float32)),
    ("by_batch", lambda x: tf.reduce_sum(x * x) / tf.cast(tf.shape(x)[0], tf.float32)),
    ("max", lambda x: tf.reduce_max(x, 1)),
    ("prod", lambda x: tf.reduce_prod(x, 2)),
    ("softmax", lambda x: tf.nn.softmax(x, axis=1) * x),
    ("cumsum", lambda x: tf.cumsum(x, 1, exclusive=True)),
    ("causal_mask", _causal),
    ("mask_of_ranges", _masked_by_ranges),
    ("first", lambda x: x[:, 0]),
    ("last", lambda x: tf.square(x[:, -1])),
    ("last_by_shape", lambda x: tf.square(x[:, _length(x) - 1])),
    ("but_first", lambda x: tf.square(x[:, 1:])),
    ("but_last", lambda x: tf.square(x[:, :-1])),
    ("front_of_table", lambda x: x + tf.ones([9, 4])[: _length(x)] * tf.range(4.0)),
    ("slice_of_table", lambda x: x * tf.slice(tf.ones([9, 4]), [1, 0], [_length(x), -1])),
    ("beyond", lambda x: tf.square(x[:, :20])),
    ("nothing", lambda x: tf.reduce_sum(tf.square(x[:, 20:]), 1) + x[:, 0]),
    ("reversed", lambda x: x[:, ::-1] * x),
    ("reverse", lambda x: tf.reverse(x, [1]) * x),
    ("rolled", lambda x: tf.roll(x, 1, 1) * x),
    ("rolled_back", lambda x: tf.roll(x, -1, 1) * x),
    ("padded", _padded),
    ("tiled", lambda x: tf.tile(x, [1, 2, 1]) ** 2),
    ("tiled_by_length", lambda x: tf.tile(x[:, :1], [1, _length(x), 1]) * x),
    ("filled", lambda x: x * tf.fill([_length(x), 4], 2.0)),
    ("zeros", lambda x: tf.concat([x, tf.zeros([tf.shape(x)[0], 2, 4])], 1)),
    ("ones_like", lambda x: tf.ones_like(x) * x),
    ("broadcast", lambda x: tf.broadcast_to(x[:, :1], tf.shape(x)) * x),
    ("counted", lambda x: x * tf.cast(tf.range(_length(x)), tf.float32)[:, None]),
    ("counted_in_floats", lambda x: x * tf.range(tf.cast(_length(x), tf.float32))[:, None]),
    ("counted_from_one", lambda x: x * tf.cast(tf.range(1, _length(x) + 1), "float32")[:, None]),
    ("counted_down", lambda x: x * tf.cast(tf.range(_length(x), 0, -1), "float32")[:, None]),
    ("stacked", lambda x: tf.stack([x, 2.0 * x], 2)),
    ("joined", lambda x: tf.concat([x, x * x], 1)),
    ("split", lambda x: [tf.square(y) for y in tf.split(x, 2, 2)]),
    ("split_in_lengths", lambda x: tf.split(tf.tile(x, [1, 2, 1]), 2, 1)[1] * x),
    ("unstacked", lambda x: tf.unstack(x, axis=2)[1]),
    ("expanded", lambda x: tf.squeeze(tf.expand_dims(x, 1), [1]) * x),
    ("smoothed", _smoothed),
    ("batch_norm", _batch_norm),
    ("convolution", lambda x: tf.nn.conv2d(_images(x), tf.ones([2, 2, 1, 3]), 1, "SAME")),
    ("strided", lambda x: tf.nn.conv2d(_images(x), tf.ones([2, 2, 1, 3]), 2, "SAME")),
    ("along_length", lambda x: tf.nn.conv1d(x, tf.ones([3, 4, 2]), 1, "SAME")),
    ("pooled", lambda x: tf.nn.avg_pool2d(_images(x), 2, 1, "SAME")),
    ("largest", lambda x: tf.nn.top_k(x, 2)[0]),
    ("einsum_heads", lambda x: tf.einsum("bsn,nhd->bhsd", x, tf.ones([4, 2, 3]))),
    ("einsum_scores", lambda x: tf.einsum("bsn,btn->bst", x, x)),
    ("einsum_lengths", lambda x: tf.einsum("bsn,bsm->nm", x, x)),
    ("diagonals", lambda x: tf.linalg.diag_part(tf.matmul(x, x, transpose_b=True))),
    ("diagonal", lambda x: tf.linalg.diag(x[:, :, 0])),
    ("set_diagonal", lambda x: tf.linalg.set_diag(tf.matmul(x, x, transpose_b=True), x[..., 0])),
    ("norm", lambda x: tf.norm(x + 3.0, axis=1)),
    ("where", lambda x: tf.where(x > 0, x, tf.zeros_like(x)) * x),
    ("condition_on_length", lambda x: tf.where(_length(x) > 4, x, 2.0 * x)),
    ("conditional", lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x * x, lambda: -x[:, ::-1])),
    (
        "conditional_size",
        lambda x: tf.cond(
            tf.reduce_sum(x) > 0, lambda: x / tf.cast(_length(x), "float32"), lambda: x
        ),
    ),
    ("larger", lambda x: x * tf.cast(tf.maximum(_length(x), 1), tf.float32)),
]


@pytest.mark.parametrize(("name", "build"), OF_ONE, ids=[row[0] for row in OF_ONE])
def test_programs_of_one_length_agree_with_tensorflow_at_every_size(name, build):
    check_symbolic(build, X)


OF_IDS = [
    ("embedding", lambda x, ids: tf.gather(tf.reshape(tf.range(16.0), [4, 4]), ids) * x),
    ("one_hot", lambda x, ids: x * tf.one_hot(ids, 4)),
    ("one_hot_of_length", lambda x, ids: tf.matmul(tf.one_hot(ids, _length(x)), x)),
    ("rows_of_a_batch", lambda x, ids: tf.gather(x, ids % _length(x), batch_dims=1) ** 2),
    ("elements", lambda x, ids: tf.gather_nd(x, ids[:, :1] * 0, batch_dims=1) ** 2),
    ("columns", lambda x, ids: tf.gather(x, [2, 0], axis=2) ** 2),
    ("sequence_mask", lambda x, ids: x * tf.sequence_mask(
        ids[:, 0], _length(x), tf.float32)[..., None]),
    ("sums_of_rows", lambda x, ids: tf.math.unsorted_segment_sum(
        tf.reshape(x, [-1, 4]), tf.reshape(ids, [-1]) % _length(x), _length(x)) ** 2),
    ("cross_entropy", lambda x, ids: tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=ids, logits=x))),
    ("dense_cross_entropy", lambda x, ids: tf.nn.softmax_cross_entropy_with_logits(
        labels=tf.one_hot(ids, 4), logits=x)),
    ("written", lambda x, ids: tf.tensor_scatter_nd_update(
        x, tf.zeros([tf.shape(x)[0], 2], tf.int32), x[:, 0])),
    ("scattered", lambda x, ids: tf.scatter_nd(tf.reshape(ids, [-1, 1]) % _length(x), tf.reshape(
        x, [-1, 4]), [_length(x), 4]) ** 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "build"), OF_IDS, ids=[row[0] for row in OF_IDS])
def test_programs_of_positions_agree_with_tensorflow_at_every_size(name, build):
    check_symbolic(build, X, IDS)


OF_TWO = [
    ("attention", lambda x, y: tf.matmul(tf.nn.softmax(tf.matmul(x, y, transpose_b=True)), y)),
    ("joined", lambda x, y: tf.concat([x, y], 1) ** 2),
    ("broadcast", lambda x, y: x[:, :, None] * y[:, None]),
    ("front", lambda x, y: tf.concat([x, y], 1)[:, : _length(x)] ** 2),
    ("behind", lambda x, y: tf.concat([x, y], 1)[:, _length(x) :] ** 2),
    ("split", lambda x, y: tf.split(tf.concat([x, y], 1), [_length(x), _length(y)], 1)[1] ** 2),
    ("einsum", lambda x, y: tf.einsum("bsn,btm->bstnm", x, y)),
    ("padded", lambda x, y: tf.pad(x, [[0, 0], [_length(y), 0], [0, 0]]) ** 2),
]


@pytest.mark.parametrize(("name", "build"), OF_TWO, ids=[row[0] for row in OF_TWO])
def test_programs_of_two_lengths_agree_with_tensorflow_at_every_size(name, build):
    check_symbolic(build, X, Y)


LIMITED = [
    ("front_of_table", lambda x: x + tf.ones([9, 4])[: _length(x)], 9),
    ("slice_of_table", lambda x: x * tf.slice(tf.ones([9, 4]), [1, 0], [_length(x), -1]), 8),
    ("at_most", lambda x: x[:, :20], 20),
    ("padded", lambda x: tf.pad(x, [[0, 0], [0, 12 - _length(x)], [0, 0]]), 12),
    ("missing", lambda x: tf.reduce_sum(tf.range(_length(x), 12)) + 0 * tf.shape(x)[0], 12),
]


@pytest.mark.parametrize(("name", "build", "most"), LIMITED, ids=[row[0] for row in LIMITED])
def test_what_is_one_program_up_to_a_size_says_so(name, build, most):
    length = Dim.symbol("S", 8, UNLIMITED)
    with pytest.raises(SizeLimitError) as error:
        captured(build, [TensorType("float32", (B, length, 4))])
    assert error.value.limits == {"S": most}
    captured(build, [TensorType("float32", (B, Dim.symbol("S", 8, most), 4))])


REFUSED = [
    ("squeeze", lambda x: tf.squeeze(x)),
    ("half", lambda x: x[:, : _length(x) // 2]),
    ("every_second", lambda x: x[:, ::2]),
    ("but_two", lambda x: x[:, :-2]),
    ("third", lambda x: x[:, 2]),
    ("halves", lambda x: tf.split(x, [1, _length(x) - 2], 1)),
    ("short_table", lambda x: x + tf.ones([7, 4])[: _length(x)]),
    ("table_of_other_length", lambda x: x + tf.ones([7, 4])),
    ("rolled_far", lambda x: tf.roll(x, 3, 1)),
    ("reshape_to_number", lambda x: tf.reshape(x, [-1, 5, 4])),
    ("strided", lambda x: tf.nn.conv1d(x, tf.ones([3, 4, 2]), 2, "SAME")),
    ("short", lambda x: tf.nn.conv1d(x, tf.ones([3, 4, 2]), 1, "VALID")),
]


@pytest.mark.parametrize(("name", "build"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_is_not_one_program_for_all_sizes_is_refused(name, build):
    with pytest.raises((GraphError, UnsupportedOpError)):
        check_symbolic(build, X)
