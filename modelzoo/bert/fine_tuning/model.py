"""A fine-tuning of BERT: the encoder with another head, its input functions and its predict mode.

Source: Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding (2018), section 4. B batch, S sequence length, N hidden size.
"""

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from modelzoo.bert.backbone import bert_encoder, initializer_of
from modelzoo.common.config.params import params_from_dict
from modelzoo.common.data.functions import InputFunctions
from modelzoo.common.layers.dense import dense
from modelzoo.common.train import predictions
from modelzoo.common.train.estimator import CSEstimatorSpec
from modelzoo.common.train.loss_spec import loss_spec


class FineTuning:
    """What all fine-tunings share. A task is a subclass, and a row of the table in tasks.py.

    Attributes:
        params_class: the schema of the YAML, a FineTuningParams.
        processors: data processor classes by their name in the YAML.
        new_layers: parts of variable names. Variables with such a part start from their initializer
            and not from the pre-trained checkpoint.
        row_ids: features that predictions repeat, so that each row can be found in the data.
    """

    params_class: Any
    processors: Mapping[str, type]
    new_layers: tuple[str, ...] = ()
    row_ids: tuple[str, ...] = ()

    @property
    def INPUTS(self):
        """The InputFunctions of the task."""
        return InputFunctions(self.params_class, self.processors)

    def WARM_START_EXCLUDES(self, params):
        """Returns the parts of names of variables that a pre-trained checkpoint lacks."""
        return self.new_layers

    def model_fn(self, features, labels, mode, params):
        """Builds the graph of training, evaluation or prediction.

        Args:
            features: ``input_ids``, ``input_mask`` (1 for padding), ``segment_ids`` [B, S] int32,
                and those of the task's data processor.
            labels: those of the data processor; None in prediction.
        """
        params = params_from_dict(self.params_class, params)
        model, training = params.model, mode == tf.estimator.ModeKeys.TRAIN
        self.check(params, mode)
        logits = self.run(features, params, training)
        if mode == tf.estimator.ModeKeys.PREDICT:
            rows = {name: tf.identity(features[name]) for name in self.row_ids}
            return CSEstimatorSpec(mode=mode, predictions={**self.predictions(logits), **rows})
        cost = self.loss(logits, labels, features, model)
        found = functools.partial(self.metrics, logits, labels, features, params)
        return loss_spec(mode, params, [cost], found)

    def run(self, features, params, training=False):
        """Returns the logits of a batch, with dropout if `training`; see `logits`."""
        sizes = params.vocab_size, params.max_position_embeddings
        hidden, _ = bert_encoder(features, params.model, *sizes, training)  # (B, S, N)
        return self.logits(hidden, features, params.model, training)

    def predict(self, estimator, inputs, params, checkpoint_path, use_cs):
        """Predicts `predict_steps` batches and writes files to ``model_dir/predict``.

        Args:
            params: `params_class`.
        """
        rows = predictions.predicted_rows(estimator, inputs, params, checkpoint_path, use_cs)
        folder = predictions.predict_folder(params)
        name_of = functools.partial(predictions.output_name, estimator=estimator, use_cs=use_cs)
        scores = self.write_predictions(params.predict_input, rows, folder, name_of)
        if scores is not None:
            predictions.write_scores(folder, checkpoint_path, scores)

    def check(self, params, mode):
        """Raises a ConfigError if files that `params` name do not fit the model."""

    def logits(self, hidden, features, model, training):
        """Builds the head.

        Args:
            hidden: [B, S, N], the encoder's output.
            model: section ``model``.

        Returns:
            What the methods below take as `logits`, of float32.
        """
        raise NotImplementedError

    def loss(self, logits, labels, features, model):
        """Returns the loss, a float32 scalar, and the count over which it is a mean."""
        raise NotImplementedError

    def metrics(self, logits, labels, features, params):
        """Returns a function that makes metric pairs by name, and the list of its tensors."""
        raise NotImplementedError

    def predictions(self, logits):
        """Returns the tensors of a prediction by name."""
        raise NotImplementedError

    def write_predictions(self, section, rows, folder, name_of):
        """Writes predictions.

        Args:
            rows: iterator of predictions, a dictionary of arrays for each example. The model runs
                while it is read.
            name_of: function from a kind, such as ``predictions``, to a file name without suffix.

        Returns:
            Scores by name; None for a task whose predictions have none.
        """
        raise NotImplementedError


def head_dense(x, size, name, model):
    """Returns a dense layer of the head, [..., `size`] float32."""
    seed = model.weight_initialization_seed
    return tf.cast(dense(x, size, name, initializer_of(model), seed=seed), tf.float32)
