"""A canned DNNClassifier with feature columns on a file of comma-separated values."""

import argparse

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--model_dir", required=True)
parser.add_argument("--batch_size", default=20, type=int)
parser.add_argument("--train_steps", default=300, type=int)

COLUMNS = ["age", "hours", "workclass", "occupation", "income"]
DEFAULTS = [[0.0], [0.0], [""], [""], [""]]
WORK = ["Private", "State-gov", "Self-emp"]


def build_columns():
    """Feature columns of a deep model."""
    age = tf.feature_column.numeric_column("age")
    hours = tf.feature_column.numeric_column("hours", normalizer_fn=lambda x: (x - 40.0) / 10.0)
    buckets = tf.feature_column.bucketized_column(age, boundaries=[25, 35, 50])
    workclass = tf.feature_column.categorical_column_with_vocabulary_list("workclass", WORK)
    occupation = tf.feature_column.categorical_column_with_hash_bucket("occupation", 50)
    return [
        hours,
        buckets,
        tf.feature_column.indicator_column(workclass),
        tf.feature_column.embedding_column(occupation, dimension=4),
    ]


def input_fn(data_file, num_epochs, shuffle, batch_size):
    """Batches of (features, label)."""

    def parse_csv(value):
        columns = tf.io.decode_csv(value, record_defaults=DEFAULTS)
        features = dict(zip(COLUMNS, columns))
        return features, tf.equal(features.pop("income"), ">50K")

    dataset = tf.data.TextLineDataset(data_file)
    if shuffle:
        dataset = dataset.shuffle(buffer_size=500, seed=1)
    dataset = dataset.map(parse_csv, num_parallel_calls=2)
    return dataset.repeat(num_epochs).batch(batch_size)


def main():
    """Trains, evaluates and predicts."""
    args = parser.parse_args()
    classifier = tf.estimator.DNNClassifier(
        feature_columns=build_columns(),
        hidden_units=[16, 8],
        optimizer=lambda: tf.keras.optimizers.legacy.Adam(learning_rate=0.01),
        model_dir=args.model_dir,
        config=tf.estimator.RunConfig(tf_random_seed=1),
    )
    classifier = tf.estimator.add_metrics(
        classifier,
        lambda labels, predictions: {
            "positives": tf.compat.v1.metrics.mean(tf.cast(predictions["class_ids"], tf.float32))
        },
    )
    classifier.train(
        input_fn=lambda: input_fn(args.data, None, True, args.batch_size), steps=args.train_steps
    )
    results = classifier.evaluate(input_fn=lambda: input_fn(args.data, 1, False, args.batch_size))
    print("Test set accuracy: {accuracy:0.3f}, auc {auc:0.3f}, {positives:0.3f}".format(**results))
    predictions = classifier.predict(lambda: input_fn(args.data, 1, False, args.batch_size))
    for row, prediction in zip(range(3), predictions):
        probability = prediction["probabilities"][prediction["class_ids"][0]]
        print(f"prediction {row}: {prediction['classes'][0].decode()} ({100 * probability:.1f}%)")


if __name__ == "__main__":
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    main()
