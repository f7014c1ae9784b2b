"""Models of images and volumes: segmentation, detection, video, capsules, GAN layers."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")

from tests.e2e.both_sides import check
from tests.foreign.inputs import RANDOM, inputs, normal, spec, v1, variable

pytestmark = pytest.mark.tf

IMAGES = {"image": normal(8, 8, 8, 3)}
LABELS = {
    "mask": RANDOM.integers(0, 2, (8, 8, 8)),
    "class": RANDOM.integers(0, 3, 8),
    "boxes": RANDOM.uniform(0, 1, (8, 4)).astype("float32"),
}


def conv(x, filters, name, **options):
    initializer = v1.random_normal_initializer(stddev=0.2, seed=len(name))
    return v1.layers.conv2d(
        x, filters, 3, padding="same", name=name, kernel_initializer=initializer, **options
    )


def transposed(x, filters, name):
    initializer = v1.random_normal_initializer(stddev=0.2, seed=len(name))
    return v1.layers.conv2d_transpose(
        x, filters, 3, 2, "same", name=name, kernel_initializer=initializer
    )


def segmented(logits, labels, mode):
    def loss():
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels["mask"], logits)
        )

    return spec(mode, loss, probabilities=tf.nn.softmax(logits))


def unet(features, labels, mode):
    """Down by pooling, up by transposed convolutions, joined; a loss of the overlap."""
    first = conv(features["image"], 4, "first", activation=tf.nn.relu)
    second = conv(v1.layers.max_pooling2d(first, 2, 2), 8, "second", activation=tf.nn.relu)
    up = tf.concat([transposed(second, 4, "up"), first], -1)
    logits = conv(up, 1, "logits")

    def loss():
        truth = tf.cast(labels["mask"], tf.float32)[..., None]
        chance = tf.sigmoid(logits)
        overlap = 2 * tf.reduce_sum(truth * chance, [1, 2, 3]) + 1
        dice = 1 - overlap / (tf.reduce_sum(truth + chance, [1, 2, 3]) + 1)
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=truth, logits=logits)
        return tf.reduce_mean(dice) + tf.reduce_mean(entropy)

    return spec(mode, loss, mask=tf.sigmoid(logits))


def deeplab(features, labels, mode):
    """Dilated convolutions at several rates, a pooled image, and bilinear resizing."""
    x = conv(features["image"], 6, "stem", activation=tf.nn.relu, strides=2)
    branches = [conv(x, 3, f"rate{rate}", dilation_rate=rate) for rate in (1, 2)]
    pooled = conv(tf.reduce_mean(x, [1, 2], keepdims=True), 3, "pooled")
    branches.append(tf.image.resize(pooled, [4, 4]))
    x = conv(tf.nn.relu(tf.concat(branches, -1)), 2, "logits")
    logits = v1.image.resize_bilinear(x, [8, 8], align_corners=True)
    return segmented(logits, labels, mode)


def pyramid(features, labels, mode):
    """A feature pyramid: nearest neighbours upwards, sums with lateral convolutions."""
    low = conv(features["image"], 4, "low", strides=2, activation=tf.nn.relu)
    high = conv(low, 6, "high", strides=2, activation=tf.nn.relu)
    lateral = conv(low, 5, "lateral")
    up = v1.image.resize_nearest_neighbor(conv(high, 5, "top"), [4, 4]) + lateral
    cubic = tf.image.resize(up, [8, 8], method="bicubic")
    return segmented(conv(cubic, 2, "logits"), labels, mode)


def detector(features, labels, mode):
    """Crops of regions, focal and smooth L1 losses, and the hardest negatives."""
    x = conv(features["image"], 4, "stem", activation=tf.nn.relu)
    boxes = tf.sigmoid(v1.layers.dense(tf.reduce_mean(x, [1, 2]), 4, name="boxes"))
    ordered = tf.concat([tf.minimum(boxes[:, :2], boxes[:, 2:]), boxes[:, 2:]], -1)
    crops = tf.image.crop_and_resize(x, tf.stop_gradient(ordered), tf.range(4), [3, 3])
    scores = v1.layers.dense(v1.layers.flatten(crops), 6, name="scores")

    def loss():
        wanted = tf.one_hot(labels["class"], 6)
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=wanted, logits=scores)
        focal = tf.pow(tf.abs(wanted - tf.sigmoid(scores)), 2.0) * entropy
        negatives = tf.reshape(focal * (1 - wanted), [-1])
        count = tf.cast(3 * tf.reduce_sum(wanted), tf.int32)
        hardest, _ = tf.nn.top_k(negatives, k=tf.minimum(count, tf.size(negatives)))
        apart = v1.losses.huber_loss(labels["boxes"], boxes)
        return tf.reduce_sum(focal * wanted) + tf.reduce_mean(hardest) + apart

    return spec(mode, loss, boxes=boxes, scores=scores)


def suppressed(features, labels, mode):
    """Boxes of a detector, of which a session keeps the best."""
    x = tf.reduce_mean(conv(features["image"], 6, "stem"), [1, 2])
    corners = tf.sort(tf.reshape(v1.layers.dense(x, 12, name="boxes"), [4, 3, 2, 2]), axis=2)
    boxes = tf.reshape(corners, [12, 4])
    scores = tf.reshape(v1.layers.dense(x, 3, name="scores"), [12])
    kept = tf.image.non_max_suppression(boxes, scores, 5)

    def loss():
        return tf.reduce_mean(tf.square(boxes)) + tf.reduce_mean(tf.square(scores - 1))

    return spec(mode, loss, kept=tf.pad(kept, [[0, 5 - tf.shape(kept)[0]]]), scores=scores)


def video(features, labels, mode):
    """3-D convolutions and pooling of eight frames of one channel."""
    clips = tf.transpose(features["image"], [0, 3, 1, 2])[..., None]
    start = v1.random_normal_initializer(stddev=0.2, seed=3)
    x = v1.layers.conv3d(clips, 4, 3, padding="same", kernel_initializer=start, name="first")
    x = v1.layers.max_pooling3d(tf.nn.relu(x), (1, 2, 2), (1, 2, 2))
    x = v1.layers.conv3d(x, 4, (3, 1, 1), kernel_initializer=start, name="second")
    x = v1.layers.average_pooling3d(tf.nn.elu(x), (1, 2, 2), (1, 2, 2), padding="same")
    up = v1.layers.conv3d_transpose(x, 2, 2, 2, kernel_initializer=start, name="up")
    logits = v1.layers.dense(v1.layers.flatten(up), 3, name="logits")

    def loss():
        return v1.losses.sparse_softmax_cross_entropy(labels["class"], logits)

    return spec(mode, loss, logits=logits)


def generator(features, labels, mode):
    """The layers of a GAN: transposed convolutions, spectral norm by power iteration, hinge."""
    code = tf.reduce_mean(features["image"], [1, 2])
    x = tf.reshape(v1.layers.dense(code, 16, name="code"), [4, 2, 2, 4])
    x = tf.nn.leaky_relu(v1.layers.batch_normalization(transposed(x, 4, "one"), training=True))
    fake = tf.tanh(transposed(x, 3, "two"))
    weight = variable("critic", [192, 1])
    vector = tf.ones([1, 192]) / 14
    for _ in range(2):
        vector = tf.nn.l2_normalize(tf.matmul(tf.matmul(vector, weight), weight, transpose_b=True))
    norm = tf.norm(tf.matmul(tf.stop_gradient(vector), weight))

    def judge(x):
        return tf.matmul(tf.reshape(x, [4, 192]), weight / norm)

    real = features["image"]

    def loss():
        mixed = 0.3 * fake + 0.7 * real
        slope = tf.gradients(tf.reduce_sum(tf.nn.softplus(judge(mixed))), mixed)[0]
        penalty = tf.reduce_mean(tf.square(tf.norm(tf.reshape(slope, [4, -1]), axis=1) - 1))
        hinge = tf.reduce_mean(tf.nn.relu(1 - judge(tf.pad(real, [[0, 0]] * 4))))
        fooled = tf.image.resize_with_pad(fake, 8, 8)
        return hinge + tf.reduce_mean(tf.nn.relu(1 + judge(fooled))) + penalty

    return spec(mode, loss, fake=fake)


def capsules(features, labels, mode):
    """Two rounds of routing by agreement, and a margin loss."""
    x = tf.reshape(conv(features["image"], 8, "primary", strides=4), [4, 8, 4])
    transform = variable("transform", [1, 8, 3, 5, 4])
    votes = tf.reduce_sum(transform * x[:, :, None, None], -1)
    agreement = tf.zeros([4, 8, 3])
    for _ in range(2):
        share = tf.nn.softmax(agreement, axis=2)
        total = tf.reduce_sum(votes * share[..., None], 1)
        size = tf.reduce_sum(tf.square(total), -1, keepdims=True)
        pose = total * size / ((1 + size) * tf.sqrt(size + 1e-9))
        agreement += tf.reduce_sum(votes * pose[:, None], -1)
    length = tf.norm(pose, axis=-1)

    def loss():
        truth = tf.one_hot(labels["class"], 3)
        present = tf.square(tf.maximum(0.0, 0.9 - length))
        absent = 0.5 * tf.square(tf.maximum(0.0, length - 0.1))
        return tf.reduce_mean(tf.reduce_sum(truth * present + (1 - truth) * absent, 1))

    return spec(mode, loss, length=length)


def grouped(features, labels, mode):
    """Grouped convolution, shuffled channels, squeeze and excitation, learned upsampling."""
    x = conv(features["image"], 8, "stem", activation=tf.nn.relu6)
    x = tf.nn.conv2d(x, variable("grouped", [3, 3, 4, 8]), 1, "SAME")
    x = tf.reshape(tf.transpose(tf.reshape(x, [4, 8, 8, 2, 4]), [0, 1, 2, 4, 3]), [4, 8, 8, 8])
    gate = v1.layers.dense(tf.reduce_mean(x, [1, 2], keepdims=True), 8, name="gate")
    x = tf.nn.depth_to_space(x * tf.sigmoid(gate), 2)
    x = tf.nn.lrn(v1.layers.separable_conv2d(x, 4, 3, 2, "same", name="apart"), 2)
    return segmented(conv(x, 2, "logits"), labels, mode)


def restored(features, labels, mode):
    """Sub-pixel upsampling; similarity of structure, edges and total variation."""
    x = tf.sigmoid(tf.nn.depth_to_space(conv(features["image"], 12, "up"), 2))
    gray = tf.image.central_crop(tf.image.rgb_to_grayscale(x), 0.5)
    turned = tf.image.flip_left_right(tf.image.rot90(x)) + tf.image.transpose(x)

    def loss():
        y = tf.sigmoid(tf.image.resize(features["image"], [16, 16]))
        edges = tf.reduce_mean(tf.square(tf.image.sobel_edges(x) - tf.image.sobel_edges(y)))
        rough = 0.01 * tf.reduce_mean(tf.image.total_variation(x))
        likeness = tf.reduce_mean(tf.image.ssim(x, y, 1.0)) + 0.001 * tf.reduce_mean(
            tf.image.psnr(x, y, 1.0)
        )
        return edges + rough - likeness + tf.reduce_mean(tf.square(turned)) + tf.reduce_mean(gray)

    return spec(mode, loss, gray=gray)


def sets_of_points(features, labels, mode):
    """Chamfer distance, transport by Sinkhorn's steps, and distances of sorted numbers."""
    x = tf.reshape(conv(features["image"], 3, "points"), [4, 64, 3])
    y = tf.reshape(features["image"], [4, 64, 3])
    apart = tf.norm(x[:, :, None] - y[:, None] + 1e-3, axis=-1)

    def loss():
        nearest = tf.reduce_mean(tf.reduce_min(apart, 1)) + tf.reduce_mean(tf.reduce_min(apart, 2))
        rows = tf.zeros([4, 64, 1])
        for _ in range(3):
            columns = -tf.reduce_logsumexp(rows - apart, 1, keepdims=True)
            rows = -tf.reduce_logsumexp(columns - apart, 2, keepdims=True)
        transport = tf.reduce_sum(tf.exp(rows - apart + columns) * apart)
        ordered = tf.sort(x[..., 0], axis=1) - tf.sort(y[..., 0], axis=1)
        median = tf.nn.top_k(x[..., 1], 32).values[:, -1]
        return nearest + 0.1 * transport + tf.reduce_mean(tf.square(ordered)) + median[0] ** 2

    return spec(mode, loss, apart=tf.reduce_mean(apart))


MODELS = [
    unet, deeplab, pyramid, detector, suppressed, video, generator, capsules, grouped,
    restored, sets_of_points,
]  # fmt: skip


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_model_of_images_does_on_the_wafer_as_on_the_host(model, tmp_path):
    check(model, tmp_path, inputs=inputs(IMAGES, LABELS))
