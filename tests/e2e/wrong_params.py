"""Params files that are wrong, each with what the user must be told. Holds no tests.

A case is the dotted keys that change in a params file that is right, and words of the message.
"""

from __future__ import annotations

import math

NAN, INF = math.nan, math.inf
GONE = object()  # the key is left out
FEW = {"scheduler": "Cosine", "initial_learning_rate": 1.0}

IN_MODEL = (
    ({"model.num_layers": 3}, "Did you mean model.num_hidden_layers?"),
    ({"model": GONE}, "model is required"),
    ({"model": None}, "model must"),
    ({"model": [1, 2]}, "model must"),
    ({"model.hidden_size": "big"}, "model.hidden_size must be a whole number. Received: 'big'."),
    ({"model.hidden_size": 0}, "model.hidden_size must be at least 1."),
    ({"model.hidden_size": -16}, "model.hidden_size must be at least 1."),
    ({"model.hidden_size": 16.5}, "model.hidden_size must be a whole number."),
    ({"model.hidden_size": True}, "model.hidden_size must be a whole number."),
    ({"model.hidden_size": 10**30}, "model.hidden_size must be below"),
    ({"model.hidden_size": 10**9, "model.num_heads": 1}, " GB"),
    ({"model.num_heads": 3}, "model.num_heads must divide hidden_size"),
    ({"model.num_hidden_layers": 10**9}, "model.num_hidden_layers must be below"),
    ({"model.nonlinearity": "swish"}, "model.nonlinearity must be one of gelu"),
    ({"model.dropout_rate": 2.0}, "model.dropout_rate must be below 1.0."),
    ({"model.dropout_rate": 1.0}, "model.dropout_rate must be below 1.0."),
    ({"model.attention_dropout_rate": NAN}, "model.attention_dropout_rate must be a finite"),
    ({"model.initializer": {"name": "normal"}}, "model.initializer"),
    ({"model.initializer": {"name": "truncated_normal", "stddev": -1.0}}, "stddev must be at"),
    ({"model.max_position_embeddings": 8}, "max_sequence_length"),
)
IN_OPTIMIZER = (
    ({"optimiser": {}}, "Did you mean optimizer?"),
    ({"optimizer.epsilon": NAN}, "optimizer.epsilon must be a finite number"),
    ({"optimizer.beta1": 1.0}, "optimizer.beta1 must be below 1.0."),
    ({"optimizer.learning_rate": -1}, "optimizer.learning_rate must be at least 0.0."),
    ({"optimizer.learning_rate": INF}, "optimizer.learning_rate must be"),
    ({"optimizer.learning_rate": "fast"}, "optimizer.learning_rate must be"),
    ({"optimizer.learning_rate": {**FEW, "scheduler": "Cosin"}}, "Did you mean Cosine?"),
    ({"optimizer.learning_rate": FEW}, "decay_steps is required"),
    ({"optimizer.optimizer_type": "adamx"}, "Received: 'adamx'."),
    (
        {"optimizer.optimizer_type": "sgd", "optimizer.weight_decay_rate": 0.1},
        "optimizer.weight_decay_rate has no effect with sgd",
    ),
    (
        {"optimizer.max_gradient_norm": 1.0, "optimizer.max_gradient_value": 1.0},
        "excludes max_gradient_norm",
    ),
    ({"optimizer.grad_accum_steps": 0}, "optimizer.grad_accum_steps must be at least 1."),
    ({"optimizer.grad_accum_steps": 2**63 - 1}, "optimizer.grad_accum_steps must be below"),
    ({"optimizer.max_gradient_norm": 1e300}, "optimizer.max_gradient_norm must be at most"),
    ({"optimizer.loss_scaling_factor": 1e300}, "optimizer.loss_scaling_factor must be at most"),
    ({"runconfig.wafer_memory_gb": 1e30}, "runconfig.wafer_memory_gb must be below"),
    (
        {"optimizer.weight_decay_rate": 0.1, "optimizer.exclude_from_weight_decay": ["("]},
        "optimizer.exclude_from_weight_decay must hold regular expressions",
    ),
    ({"optimizer.loss_scaling_factor": "dynamo"}, "optimizer.loss_scaling_factor must be"),
)
IN_INPUTS = (
    ({"train_input.batch_size": 0}, "train_input.batch_size must be at least 1."),
    ({"train_input.batch_size": 10**8}, "lower batch_size"),
    ({"train_input.max_sequence_length": 10**8}, "lower batch_size"),
    ({"train_input.max_sequence_length": 10**9}, "train_input.max_sequence_length times batch"),
    ({"eval_input.max_sequence_length": 64}, "max_sequence_length"),
    ({"eval_input.vocab_size": 300}, "vocab_size"),
    ({"train_input.data_processor": "GptTextProcessor"}, "Did you mean GptTextDataProcessor?"),
    ({"train_input.data_processor": GONE}, "with the key data_processor"),
    ({"train_input.eval_fraction": 2.0}, "eval_fraction"),
    ({"train_input.shuffle": "yes please"}, "train_input.shuffle must be true or false."),
    ({"train_input.shuffle_seed": -5}, "train_input.shuffle_seed must be at least 0."),
    ({"train_input.data_dir": "nowhere/*.txt"}, "nowhere"),
    ({"train_input.skip_steps": 2**63 - 1}, "train_input.skip_steps must be below 2147483648"),
    ({"train_input.data_dir": 5}, "data_dir must be"),
)
IN_RUNCONFIG = (
    ({"model_name": "gpt4"}, "gpt4"),
    ({"model_name": GONE}, "model_name"),
    ({"model_name": ["gpt3"]}, "model_name"),
    ({"runconfig.max_steps": -1}, "runconfig.max_steps must be at least 0."),
    ({"runconfig.max_steps": GONE}, "needs runconfig.max_steps or --steps"),
    ({"runconfig.save_checkpoints_steps": 0}, "save_checkpoints_steps must be at least 1."),
    ({"runconfig.mode": "trian"}, "Did you mean train?"),
    ({"runconfig.num_csx": 0}, "runconfig.num_csx must be at least 1."),
    ({"runconfig.memoryx_ram_gb": 1.0}, "has no effect without memoryx_dir"),
    ({"runconfig.memoryx_dir": "text.txt"}, "text.txt"),
    ({"runconfig.wafer_memory_gb": NAN}, "wafer_memory_gb must be a finite number"),
    ({"runconfig.wafer_memory_gb": 1e-6}, "wafer_memory_gb"),
    ({"runconfig.early_stopping": {"patience": 1}}, "Run with -m train_and_eval"),
    ({"runconfig.keep_best_checkpoint": {"mode": "best"}}, "mode must be one of min, max."),
    ({"runconfig.checkpoint_path": "a", "runconfig.resume_from": "b"}, "excludes checkpoint_path"),
    ({"runconfig.use_cs_grad_accum": True}, "runconfig.micro_batches"),
    ({"runconfig.enable_distributed": True}, "GPUs"),
    ({"runconfig.tf_random_seed": "one"}, "tf_random_seed must be a whole number"),
    ({"runconfig.tf_random_seed": 10**20}, "tf_random_seed must be below"),
    ({"csconfig": {"use_cbfloat16": True}}, "needs model.mixed_precision"),
)
CHANGES = (*IN_MODEL, *IN_OPTIMIZER, *IN_INPUTS, *IN_RUNCONFIG)
# Whole files.
TEXTS = (
    (b"", "p.yaml: must hold sections of keys. Received: nothing."),
    (b"- 1\n- 2\n", "p.yaml: must hold sections of keys."),
    (b"model: [1, 2\noptimizer: x\n", "must be YAML"),
    (b"model:\n\thidden_size: 3\n", "p.yaml: line 2: must be YAML"),
    (b"model:\n  a: 1\n  a: 2\n", "key model.a must stand once. Received: lines 2 and 3."),
    (b"\x00\x01\x02", "p.yaml: must be YAML"),
    (b"model_name: \xff\xfe\n", "p.yaml: must be UTF-8 text."),
    (b"model_name: !!python/object/apply:os.system ['true']\n", "p.yaml"),
)
