"""Makes a model's input functions from its data processors.

A data processor is a class made from its input section. It has ``create_dataset(training, skip,
predicting)``, which returns batches of features and labels without the first `skip`: in training of
one size, else of every example, so that the last may be smaller; and ``blank()``, which returns one
batch of zeros of the same shapes and types.
"""

import os

import tensorflow.compat.v1 as tf

from modelzoo.common.config.params import params_from_dict
from modelzoo.common.model_dir import resume


class InputFunctions:
    """The input functions of a model, as tf.estimator takes them.

    Args:
        params_class: the model's `Params`.
    """

    def __init__(self, params_class, processors):
        self._params_class = params_class
        self._processors = processors

    def train(self, params):
        """Returns the training batches, continuing where the checkpoint of model_dir is."""
        params = params_from_dict(self._params_class, params)
        per_step = params.batches_per_step
        skip = resume.batches_to_skip(params.train_input, params.runconfig, per_step)
        return without_autotune(
            self.processor(params.train_input).create_dataset(True, skip, False)
        )

    def eval(self, params):
        """Returns the evaluation batches: every example once, so the last batch may be smaller."""
        section = params_from_dict(self._params_class, params).eval_input
        skip = section.skip_steps or 0
        return without_autotune(self.processor(section).create_dataset(False, skip, False))

    def predict(self, params):
        """Returns batches of features; every example, so the last batch may be smaller."""
        section = params_from_dict(self._params_class, params).predict_input
        dataset = self.processor(section).create_dataset(False, section.skip_steps or 0, True)
        return without_autotune(dataset.map(_features_alone))

    def blank(self, params):
        """Returns training batches of zeros, of the shapes that data would have; reads no file."""
        section = params_from_dict(self._params_class, params).train_input
        return without_autotune(
            tf.data.Dataset.from_tensors(self.processor(section).blank()).repeat()
        )

    def without_data(self, name):
        """Returns an input function of zeros for an input section; it reads no file.

        Args:
            name: ``train_input``, ``eval_input`` or ``predict_input``. Batches of the last two may
                differ in size, as their data's do.
        """
        if name == "train_input":
            return self.blank

        def input_fn(params):
            section = getattr(params_from_dict(self._params_class, params), name)
            batch = tf.data.Dataset.from_tensors(self.processor(section).blank())
            if name == "predict_input":
                batch = batch.map(_features_alone)
            return without_autotune(batch.unbatch().batch(section.batch_size))

        return input_fn

    def processor(self, section):
        """Returns the data processor of an input section."""
        return self._processors[section.data_processor](section)


def _features_alone(features, labels=None):
    return features


def without_autotune(dataset):
    """The dataset without autotuning, and with a thread pool of its own.

    The thread of TensorFlow 2.15 that tunes datasets can delay the end of a session by up to a
    minute. With its own threads, one per core, the session needs none; see
    tf_session/synchronous_batches.py.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = len(os.sched_getaffinity(0))
    return dataset.with_options(options)
