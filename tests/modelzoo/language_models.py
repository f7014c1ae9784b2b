"""Small language models with random weights and a checkpoint, for tests of what is built on them.

It holds no test itself.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow.compat.v1 as tf

from modelzoo.common.config import registry
from modelzoo.common.config.params import params_from_dict
from modelzoo.common.evaluate.scoring import ModelSession
from modelzoo.common.generate.prediction import open_decoder
from modelzoo.common.tokenizers.tokenizers import ByteTokenizer
from modelzoo.common.train.estimator import make_estimator

NAMES = ("gpt3", "gptj")
VOCAB_SIZE, POSITIONS = 257, 48


def small_tree(name, vocab_size=VOCAB_SIZE, **model):
    """Parameters of a byte-level model whose weights are large enough to tell tokens apart."""
    wide = {"name": "random_normal", "stddev": 0.3}
    own = {"rotary_dim": 2} if name == "gptj" else {}
    return {
        "model_name": name,
        "train_input": {
            "data_processor": "GptTextDataProcessor",
            "max_sequence_length": POSITIONS,
            "batch_size": 2,
            "vocab_size": vocab_size,
        },
        "model": {
            "hidden_size": 8,
            "num_hidden_layers": 2,
            "num_heads": 2,
            "filter_size": 16,
            "layer_norm_epsilon": 1e-5,
            "max_position_embeddings": POSITIONS,
            "initializer": wide,
            "output_layer_initializer": wide,
            "embedding_initializer": wide,
            **own,
            **model,
        },
        "optimizer": {"optimizer_type": "sgd", "learning_rate": 0.1},
        "runconfig": {"tf_random_seed": 1, "mode": "predict"},
    }


class SmallModel:
    """A model with a checkpoint of random weights.

    Attributes:
        params: its parameters; model_dir is the folder.
        checkpoint: prefix of the checkpoint.
    """

    def __init__(self, name, folder, **model):
        cls = registry.params_class(name, "test")
        params = params_from_dict(cls, small_tree(name, **model))
        runconfig = dataclasses.replace(params.runconfig, model_dir=str(folder))
        self.params = dataclasses.replace(params, runconfig=runconfig)
        self._model, _ = registry.load_model(name)
        with tf.Graph().as_default(), tf.Session() as session:
            self._logits(tf.zeros([1, 2], tf.int32))
            tf.train.get_or_create_global_step()
            tf.set_random_seed(1)
            session.run(tf.global_variables_initializer())
            self.checkpoint = tf.train.Saver().save(session, f"{folder}/model.ckpt", 0)

    def _logits(self, ids):
        name = {"gpt3": "gpt_logits", "gptj": "gptj_logits"}[self.params.model_name]
        return getattr(self._model, name)(ids, self.params, False)

    def full_logits(self, ids):
        """Logits [B, S, V] of all positions, without a cache, on the host."""
        with tf.Graph().as_default(), tf.Session() as session:
            logits = self._logits(tf.constant(ids, tf.int32))
            tf.train.Saver().restore(session, self.checkpoint)
            return session.run(logits).reshape(*np.shape(ids), -1)

    def estimator(self, use_cs):
        """The estimator of the model."""
        return make_estimator(self._model.model_fn, self.params, use_cs)

    def decoder(self, use_cs):
        """A CachedDecoder of the model."""
        return open_decoder(self.estimator(use_cs), self.params, self.checkpoint, use_cs)

    def session(self, use_cs=False, batch_size=3):
        """A ModelSession of the model."""
        device = None if use_cs else "/cpu:0"
        runconfig = dataclasses.replace(self.params.runconfig, device=device)
        params = dataclasses.replace(self.params, runconfig=runconfig)
        estimator = self.estimator(use_cs)
        return ModelSession(estimator, params, self.checkpoint, ByteTokenizer(), batch_size)
