"""BERT's fine-tuning for classification of sentences, in the style of its first release."""

import collections
import csv
import os
import re

import tensorflow.compat.v1 as tf

flags = tf.flags
FLAGS = flags.FLAGS
flags.DEFINE_string("data_dir", None, "The input data dir with train.tsv and dev.tsv.")
flags.DEFINE_string("output_dir", None, "Where checkpoints are written.")
flags.DEFINE_integer("max_seq_length", 16, "Length of a sequence.")
flags.DEFINE_integer("train_batch_size", 16, "Total batch size for training.")
flags.DEFINE_integer("num_train_steps", 80, "Number of steps to train.")
flags.DEFINE_float("learning_rate", 2e-3, "The initial learning rate for Adam.")
flags.DEFINE_bool("use_tpu", False, "Whether to use TPU or GPU/CPU.")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "plot", "the", "was", "is"]
HIDDEN, HEADS, LAYERS, INTERMEDIATE = 32, 4, 2, 64


def file_based_convert_examples_to_features(tsv, output_file):
    """Writes the lines of a file as records."""
    writer = tf.python_io.TFRecordWriter(output_file)
    with tf.gfile.Open(tsv, "r") as file:
        for label, text in csv.reader(file, delimiter="\t"):
            tokens = ["[CLS]", *text.lower().split()[: FLAGS.max_seq_length - 2], "[SEP]"]
            ids = [WORDS.index(token) if token in WORDS else 1 for token in tokens]
            padding = [0] * (FLAGS.max_seq_length - len(ids))

            def create_int_feature(values):
                return tf.train.Feature(int64_list=tf.train.Int64List(value=list(values)))

            features = collections.OrderedDict()
            features["input_ids"] = create_int_feature(ids + padding)
            features["input_mask"] = create_int_feature([1] * len(ids) + padding)
            features["segment_ids"] = create_int_feature([0] * FLAGS.max_seq_length)
            features["label_ids"] = create_int_feature([int(label)])
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    writer.close()


def file_based_input_fn_builder(input_file, is_training):
    """An input_fn for TPUEstimator."""
    length = FLAGS.max_seq_length
    name_to_features = {
        "input_ids": tf.FixedLenFeature([length], tf.int64),
        "input_mask": tf.FixedLenFeature([length], tf.int64),
        "segment_ids": tf.FixedLenFeature([length], tf.int64),
        "label_ids": tf.FixedLenFeature([], tf.int64),
    }

    def _decode_record(record):
        example = tf.parse_single_example(record, name_to_features)
        for name in list(example.keys()):
            if example[name].dtype == tf.int64:
                example[name] = tf.to_int32(example[name])
        return example

    def input_fn(params):
        d = tf.data.TFRecordDataset(input_file)
        if is_training:
            d = d.repeat().shuffle(buffer_size=100)
        return d.apply(
            tf.data.experimental.map_and_batch(
                _decode_record, batch_size=params["batch_size"], drop_remainder=True
            )
        )

    return input_fn


def gelu(x):
    """Gaussian Error Linear Unit."""
    return x * 0.5 * (1.0 + tf.erf(x / tf.sqrt(2.0)))


def create_initializer():
    """Truncated normal of deviation 0.02."""
    return tf.truncated_normal_initializer(stddev=0.02)


def layer_norm(tensor):
    """Layer normalization with variables of its own."""
    with tf.variable_scope(None, default_name="LayerNorm"):
        gamma = tf.get_variable("gamma", [HIDDEN], initializer=tf.ones_initializer())
        beta = tf.get_variable("beta", [HIDDEN], initializer=tf.zeros_initializer())
    mean, variance = tf.nn.moments(tensor, axes=[-1], keep_dims=True)
    return tf.nn.batch_normalization(tensor, mean, variance, beta, gamma, 1e-12)


def dropout(tensor, rate, is_training):
    """Dropout while training."""
    return tf.nn.dropout(tensor, rate=rate) if is_training else tensor


def dense(tensor, units, name, activation=None):
    """A dense layer with BERT's initial values."""
    return tf.layers.dense(
        tensor, units, activation, kernel_initializer=create_initializer(), name=name
    )


def attention_layer(tensor, input_mask, is_training):
    """Multi-headed self-attention: [B, T, H]."""
    batch, length = tf.shape(tensor)[0], tensor.shape.as_list()[1]
    size = HIDDEN // HEADS

    def transpose_for_scores(name):
        projected = tf.reshape(dense(tensor, HIDDEN, name), [batch, length, HEADS, size])
        return tf.transpose(projected, [0, 2, 1, 3])

    query, key, value = map(transpose_for_scores, ("query", "key", "value"))
    scores = tf.multiply(tf.matmul(query, key, transpose_b=True), 1.0 / size**0.5)
    adder = (1.0 - tf.cast(input_mask[:, tf.newaxis, tf.newaxis, :], tf.float32)) * -10000.0
    probabilities = dropout(tf.nn.softmax(scores + adder), 0.1, is_training)
    context = tf.transpose(tf.matmul(probabilities, value), [0, 2, 1, 3])
    return tf.reshape(context, [batch, length, HIDDEN])


def bert_model(input_ids, input_mask, segment_ids, is_training):
    """The pooled output: [B, H]."""
    length = input_ids.shape.as_list()[1]
    with tf.variable_scope("bert"):
        with tf.variable_scope("embeddings"):
            shapes = {
                "word_embeddings": [len(WORDS), HIDDEN],
                "token_type_embeddings": [2, HIDDEN],
                "position_embeddings": [length, HIDDEN],
            }
            tables = {
                name: tf.get_variable(name, shape, initializer=create_initializer())
                for name, shape in shapes.items()
            }
            output = tf.nn.embedding_lookup(tables["word_embeddings"], input_ids)
            kinds = tf.one_hot(tf.reshape(segment_ids, [-1]), depth=2)
            kinds = tf.matmul(kinds, tables["token_type_embeddings"])
            output += tf.reshape(kinds, [-1, length, HIDDEN])
            output += tf.expand_dims(tables["position_embeddings"], 0)
            output = dropout(layer_norm(output), 0.1, is_training)
        with tf.variable_scope("encoder"):
            for number in range(LAYERS):
                with tf.variable_scope(f"layer_{number}"):
                    with tf.variable_scope("attention"):
                        context = attention_layer(output, input_mask, is_training)
                        context = dense(context, HIDDEN, "output")
                        attended = layer_norm(dropout(context, 0.1, is_training) + output)
                    hidden = dense(attended, INTERMEDIATE, "intermediate", gelu)
                    hidden = dropout(dense(hidden, HIDDEN, "output"), 0.1, is_training)
                    output = layer_norm(hidden + attended)
        with tf.variable_scope("pooler"):
            first = tf.squeeze(output[:, 0:1, :], axis=1)
            return dense(first, HIDDEN, "dense", tf.tanh)


class AdamWeightDecayOptimizer(tf.train.Optimizer):
    """Adam with decoupled weight decay, without bias correction."""

    def __init__(self, learning_rate):
        super().__init__(False, "AdamWeightDecayOptimizer")
        self.learning_rate = learning_rate

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Updates the variables; the step is counted by the caller."""
        assignments = []
        for grad, param in grads_and_vars:
            if grad is None or param is None:
                continue
            param_name = re.match("^(.*):\\d+$", param.name)[1]
            m, v = (
                tf.get_variable(
                    name=f"{param_name}/adam_{slot}",
                    shape=param.shape.as_list(),
                    dtype=tf.float32,
                    trainable=False,
                    initializer=tf.zeros_initializer(),
                )
                for slot in "mv"
            )
            next_m = tf.multiply(0.9, m) + tf.multiply(0.1, grad)
            next_v = tf.multiply(0.999, v) + tf.multiply(0.001, tf.square(grad))
            update = next_m / (tf.sqrt(next_v) + 1e-6)
            if "LayerNorm" not in param_name and "bias" not in param_name:
                update += 0.01 * param
            next_param = param - self.learning_rate * update
            assignments += [param.assign(next_param), m.assign(next_m), v.assign(next_v)]
        return tf.group(*assignments, name=name)


def create_optimizer(loss, init_lr, num_train_steps, num_warmup_steps):
    """Polynomial decay with a linear warmup, gradients clipped by their norm."""
    global_step = tf.train.get_or_create_global_step()
    rate = tf.train.polynomial_decay(
        tf.constant(init_lr), global_step, num_train_steps, end_learning_rate=0.0, power=1.0
    )
    step, warmup = tf.cast(global_step, tf.float32), tf.constant(float(num_warmup_steps))
    is_warmup = tf.cast(step < warmup, tf.float32)
    rate = (1.0 - is_warmup) * rate + is_warmup * init_lr * step / warmup
    optimizer = AdamWeightDecayOptimizer(rate)
    tvars = tf.trainable_variables()
    grads, _ = tf.clip_by_global_norm(tf.gradients(loss, tvars), clip_norm=1.0)
    train_op = optimizer.apply_gradients(zip(grads, tvars), global_step=global_step)
    return tf.group(train_op, [global_step.assign(global_step + 1)])


def model_fn_builder(num_labels, num_train_steps):
    """The model_fn of TPUEstimator."""

    def model_fn(features, labels, mode, params):
        is_training = mode == tf.estimator.ModeKeys.TRAIN
        label_ids = features["label_ids"]
        pooled = bert_model(
            features["input_ids"], features["input_mask"], features["segment_ids"], is_training
        )
        weights = tf.get_variable(
            "output_weights", [num_labels, HIDDEN], initializer=create_initializer()
        )
        bias = tf.get_variable("output_bias", [num_labels], initializer=tf.zeros_initializer())
        pooled = dropout(pooled, 0.1, is_training)
        logits = tf.nn.bias_add(tf.matmul(pooled, weights, transpose_b=True), bias)
        log_probs = tf.nn.log_softmax(logits, axis=-1)
        one_hot_labels = tf.one_hot(label_ids, depth=num_labels, dtype=tf.float32)
        per_example_loss = -tf.reduce_sum(one_hot_labels * log_probs, axis=-1)
        loss = tf.reduce_mean(per_example_loss)
        if is_training:
            train_op = create_optimizer(loss, params["rate"], num_train_steps, 8)
            return tf.estimator.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)
        if mode == tf.estimator.ModeKeys.EVAL:

            def metric_fn(per_example_loss, label_ids, logits):
                found = tf.argmax(logits, axis=-1, output_type=tf.int32)
                return {
                    "eval_accuracy": tf.metrics.accuracy(label_ids, found),
                    "eval_loss": tf.metrics.mean(values=per_example_loss),
                }

            eval_metrics = (metric_fn, [per_example_loss, label_ids, logits])
            return tf.estimator.tpu.TPUEstimatorSpec(
                mode=mode, loss=loss, eval_metrics=eval_metrics
            )
        predictions = {"probabilities": tf.nn.softmax(logits)}
        return tf.estimator.tpu.TPUEstimatorSpec(mode=mode, predictions=predictions)

    return model_fn


def main(_):
    """Fine-tunes, evaluates and predicts."""
    tf.logging.set_verbosity(tf.logging.INFO)
    tf.gfile.MakeDirs(FLAGS.output_dir)
    run_config = tf.estimator.tpu.RunConfig(
        model_dir=FLAGS.output_dir,
        tf_random_seed=1,
        save_checkpoints_steps=40,
        tpu_config=tf.estimator.tpu.TPUConfig(iterations_per_loop=1000),
    )
    estimator = tf.estimator.tpu.TPUEstimator(
        use_tpu=FLAGS.use_tpu,
        model_fn=model_fn_builder(2, FLAGS.num_train_steps),
        config=run_config,
        params={"rate": FLAGS.learning_rate},
        train_batch_size=FLAGS.train_batch_size,
        eval_batch_size=8,
        predict_batch_size=8,
    )
    records = {}
    for name in ("train", "dev"):
        records[name] = os.path.join(FLAGS.output_dir, f"{name}.tf_record")
        tsv = os.path.join(FLAGS.data_dir, f"{name}.tsv")
        file_based_convert_examples_to_features(tsv, records[name])
    train_input_fn = file_based_input_fn_builder(records["train"], True)
    estimator.train(input_fn=train_input_fn, max_steps=FLAGS.num_train_steps)
    eval_input_fn = file_based_input_fn_builder(records["dev"], False)
    result = estimator.evaluate(input_fn=eval_input_fn, steps=None)
    with tf.gfile.GFile(os.path.join(FLAGS.output_dir, "eval_results.txt"), "w") as writer:
        for key in sorted(result.keys()):
            writer.write(f"{key} = {result[key]}\n")
    rows = [row["probabilities"] for row in estimator.predict(input_fn=eval_input_fn)]
    print(f"predicted {len(rows)} sentences")


if __name__ == "__main__":
    flags.mark_flag_as_required("data_dir")
    flags.mark_flag_as_required("output_dir")
    tf.app.run()
