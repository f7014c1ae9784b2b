"""A residual network on CIFAR-10's binary files, in the style of an official Estimator example."""

from __future__ import annotations

import os

import tensorflow.compat.v1 as tf
from absl import app, flags

flags.DEFINE_string("data_dir", None, "Folder with data_batch_*.bin and test_batch.bin.")
flags.DEFINE_string("model_dir", None, "Folder of checkpoints.")
flags.DEFINE_string("export_dir", None, "Folder of the exported model.")
flags.DEFINE_integer("resnet_size", 8, "Layers: 6 * n + 2.")
flags.DEFINE_integer("batch_size", 16, "Images of a batch.")
flags.DEFINE_integer("train_epochs", 2, "Epochs to train.")
flags.DEFINE_integer("epochs_between_evals", 1, "Epochs between two evaluations.")
FLAGS = flags.FLAGS

HEIGHT, WIDTH, DEPTH = 32, 32, 3
RECORD_BYTES = HEIGHT * WIDTH * DEPTH + 1
NUM_CLASSES, NUM_IMAGES = 10, 64
BATCH_NORM_DECAY, BATCH_NORM_EPSILON = 0.9, 1e-5
WEIGHT_DECAY, MOMENTUM = 2e-4, 0.9


def parse_record(raw_record, is_training):
    """Label and image of a record; a training image is shifted and mirrored."""
    record = tf.decode_raw(raw_record, tf.uint8)
    label = tf.cast(record[0], tf.int32)
    image = tf.transpose(tf.reshape(record[1:], [DEPTH, HEIGHT, WIDTH]), [1, 2, 0])
    image = tf.cast(image, tf.float32)
    if is_training:
        image = tf.image.resize_image_with_crop_or_pad(image, HEIGHT + 8, WIDTH + 8)
        image = tf.random_crop(image, [HEIGHT, WIDTH, DEPTH])
        image = tf.image.random_flip_left_right(image)
    return tf.image.per_image_standardization(image), label


def input_fn(is_training, data_dir, batch_size, num_epochs=1):
    """Batches of the records of a folder."""
    names = ["data_batch_1.bin"] if is_training else ["test_batch.bin"]
    dataset = tf.data.FixedLengthRecordDataset(
        [os.path.join(data_dir, name) for name in names], RECORD_BYTES
    )
    if is_training:
        dataset = dataset.shuffle(buffer_size=NUM_IMAGES).repeat(num_epochs)
    dataset = dataset.apply(
        tf.data.experimental.map_and_batch(
            lambda record: parse_record(record, is_training), batch_size, drop_remainder=False
        )
    )
    return dataset.prefetch(1)


def batch_norm(inputs, training):
    """Fused batch normalization."""
    return tf.layers.batch_normalization(
        inputs,
        axis=3,
        momentum=BATCH_NORM_DECAY,
        epsilon=BATCH_NORM_EPSILON,
        training=training,
        fused=True,
    )


def conv2d_fixed_padding(inputs, filters, kernel_size, strides):
    """A convolution whose padding does not depend on the size of its input."""
    if strides > 1:
        total = kernel_size - 1
        begin, end = total // 2, total - total // 2
        inputs = tf.pad(inputs, [[0, 0], [begin, end], [begin, end], [0, 0]])
    return tf.layers.conv2d(
        inputs,
        filters,
        kernel_size,
        strides,
        padding="SAME" if strides == 1 else "VALID",
        use_bias=False,
        kernel_initializer=tf.variance_scaling_initializer(),
    )


def block(inputs, filters, training, strides, project):
    """Two convolutions with a shortcut; normalization comes first."""
    shortcut = inputs
    inputs = tf.nn.relu(batch_norm(inputs, training))
    if project:
        shortcut = conv2d_fixed_padding(inputs, filters, 1, strides)
    inputs = conv2d_fixed_padding(inputs, filters, 3, strides)
    inputs = tf.nn.relu(batch_norm(inputs, training))
    return conv2d_fixed_padding(inputs, filters, 3, 1) + shortcut


def network(inputs, resnet_size, training):
    """Logits of images."""
    inputs = tf.identity(conv2d_fixed_padding(inputs, 16, 3, 1), "initial_conv")
    for stage, filters in enumerate((16, 32, 64)):
        for number in range((resnet_size - 2) // 6):
            strides = 2 if stage and not number else 1
            inputs = block(inputs, filters, training, strides, project=number == 0)
        inputs = tf.identity(inputs, f"block_layer{stage + 1}")
    inputs = tf.nn.relu(batch_norm(inputs, training))
    inputs = tf.identity(tf.reduce_mean(inputs, [1, 2]), "final_reduce_mean")
    return tf.identity(tf.layers.dense(inputs, NUM_CLASSES), "final_dense")


def model_fn(features, labels, mode, params):
    """The specification of the estimator."""
    tf.summary.image("images", features, max_outputs=2)
    training = mode == tf.estimator.ModeKeys.TRAIN
    logits = network(features, params["resnet_size"], training)
    predictions = {
        "classes": tf.argmax(logits, axis=1),
        "probabilities": tf.nn.softmax(logits, name="softmax_tensor"),
    }
    if mode == tf.estimator.ModeKeys.PREDICT:
        outputs = {"predict": tf.estimator.export.PredictOutput(predictions)}
        return tf.estimator.EstimatorSpec(mode, predictions, export_outputs=outputs)
    cross_entropy = tf.losses.sparse_softmax_cross_entropy(logits=logits, labels=labels)
    tf.identity(cross_entropy, name="cross_entropy")
    tf.summary.scalar("cross_entropy", cross_entropy)
    loss = cross_entropy + WEIGHT_DECAY * tf.add_n(
        [
            tf.nn.l2_loss(tf.cast(variable, tf.float32))
            for variable in tf.trainable_variables()
            if "batch_normalization" not in variable.name
        ]
    )
    accuracy = tf.metrics.accuracy(labels, predictions["classes"])
    train_op = None
    if training:
        step = tf.train.get_or_create_global_step()
        batches = NUM_IMAGES / params["batch_size"]
        boundaries = [int(batches * epoch) for epoch in (100, 150)]
        rate = tf.train.piecewise_constant(step, boundaries, [0.05, 0.005, 0.0005])
        tf.identity(rate, name="learning_rate")
        tf.summary.scalar("learning_rate", rate)
        optimizer = tf.train.MomentumOptimizer(learning_rate=rate, momentum=MOMENTUM)
        update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        train_op = tf.group(optimizer.minimize(loss, step), update_ops)
    tf.identity(accuracy[1], name="train_accuracy")
    tf.summary.scalar("train_accuracy", accuracy[1])
    return tf.estimator.EstimatorSpec(
        mode, predictions, loss, train_op, eval_metric_ops={"accuracy": accuracy}
    )


def main(_):
    """Trains and evaluates in turns, then exports."""
    session_config = tf.ConfigProto(inter_op_parallelism_threads=2, allow_soft_placement=True)
    run_config = tf.estimator.RunConfig(session_config=session_config, save_checkpoints_secs=1e9)
    classifier = tf.estimator.Estimator(
        model_fn=model_fn,
        model_dir=FLAGS.model_dir,
        config=run_config,
        params={"resnet_size": FLAGS.resnet_size, "batch_size": FLAGS.batch_size},
    )
    tensors = {name: name for name in ("learning_rate", "cross_entropy", "train_accuracy")}
    for _ in range(FLAGS.train_epochs // FLAGS.epochs_between_evals):
        hook = tf.train.LoggingTensorHook(tensors=tensors, every_n_iter=4)
        classifier.train(
            lambda: input_fn(True, FLAGS.data_dir, FLAGS.batch_size, FLAGS.epochs_between_evals),
            hooks=[hook],
        )
        results = classifier.evaluate(lambda: input_fn(False, FLAGS.data_dir, FLAGS.batch_size))
        print("evaluation:", results["global_step"], results["accuracy"])
    if FLAGS.export_dir is not None:

        def receiver():
            images = tf.placeholder(tf.float32, [None, HEIGHT, WIDTH, DEPTH], name="input")
            return tf.estimator.export.TensorServingInputReceiver(images, images)

        classifier.export_savedmodel(FLAGS.export_dir, receiver)


if __name__ == "__main__":
    tf.logging.set_verbosity(tf.logging.INFO)
    app.run(main)
