"""train_and_evaluate with exporters, early stopping and a model_fn of Keras layers."""

import argparse

import numpy as np
import tensorflow as tf


def model_fn(features, labels, mode, params):
    """A regression with dropout."""
    training = mode == tf.estimator.ModeKeys.TRAIN
    net = features["x"]
    for units in params["hidden"]:
        net = tf.keras.layers.Dense(units, activation="relu")(net)
        net = tf.keras.layers.Dropout(0.1)(net, training=training)
    value = tf.squeeze(tf.keras.layers.Dense(1)(net), axis=-1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        output = tf.estimator.export.RegressionOutput(value)
        return tf.estimator.EstimatorSpec(
            mode, {"value": value}, export_outputs={"serving_default": output}
        )
    loss = tf.compat.v1.losses.mean_squared_error(labels, value)
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = {"mae": tf.compat.v1.metrics.mean_absolute_error(labels, value)}
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = tf.compat.v1.train.AdamOptimizer(params["learning_rate"])
    train_op = optimizer.minimize(loss, global_step=tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def make_input_fn(seed, repeat):
    """An input function over generated houses."""
    random = np.random.RandomState(seed)
    x = random.rand(200, 6).astype(np.float32)
    y = (x @ np.arange(1.0, 7.0) + 0.1 * random.randn(200)).astype(np.float32)
    return tf.compat.v1.estimator.inputs.numpy_input_fn(
        {"x": x}, y, batch_size=20, num_epochs=None if repeat else 1, shuffle=repeat
    )


def main():
    """Trains until the loss no longer decreases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--max_steps", type=int, default=300)
    args = parser.parse_args()
    config = tf.estimator.RunConfig(
        model_dir=args.model_dir, tf_random_seed=3, save_checkpoints_steps=50
    )
    params = {"hidden": [16, 16], "learning_rate": 0.01}
    estimator = tf.estimator.Estimator(model_fn, config=config, params=params)
    serving = tf.estimator.export.build_parsing_serving_input_receiver_fn(
        {"x": tf.io.FixedLenFeature([6], tf.float32)}
    )
    early = tf.estimator.experimental.stop_if_no_decrease_hook(
        estimator, "loss", max_steps_without_decrease=1000, run_every_secs=None, run_every_steps=50
    )
    exporters = [
        tf.estimator.BestExporter("best", serving, exports_to_keep=2),
        tf.estimator.FinalExporter("final", serving),
    ]
    train_spec = tf.estimator.TrainSpec(
        make_input_fn(0, True), max_steps=args.max_steps, hooks=[early]
    )
    eval_spec = tf.estimator.EvalSpec(
        make_input_fn(1, False),
        steps=None,
        exporters=exporters,
        start_delay_secs=0,
        throttle_secs=0,
    )
    metrics, _ = tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
    print("final: step {global_step}, mae {mae:.4f}".format(**metrics))


if __name__ == "__main__":
    main()
