"""What the configurations of several architectures have in common. Knows no name of a tensor."""

from cerebras_tf.errors import ConfigError

# Their activations as ours; the first of each of ours is what is written back by default.
NONLINEARITIES = {
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "tanh": "tanh",
}
# A converted model loads and evaluates at once; replace these values to train it.
PLACEHOLDER_DATA_DIR = "./data"
PLACEHOLDER_OPTIMIZER = {
    "optimizer_type": "adamw",
    "beta1": 0.9,
    "beta2": 0.95,
    "epsilon": 1.0e-8,
    "use_bias_correction": True,
    "weight_decay_rate": 0.01,
    "max_gradient_norm": 1.0,
    "learning_rate": 1.0e-5,
}


def our_nonlinearity(config, key, default, where):
    """Returns our name of the activation under `key` of a config.json."""
    name = config.get(key, default)
    if not isinstance(name, str) or name not in NONLINEARITIES:
        raise ConfigError(
            f"{where}: {key} must be one of {', '.join(NONLINEARITIES)}. Received: {name!r}. The "
            "zoo has no such activation, so the model cannot be converted."
        )
    return NONLINEARITIES[name]


def their_nonlinearity(name, tanh_gelu, where):
    """Returns their name of our activation; `tanh_gelu` is that of GELU's tanh approximation."""
    theirs = {ours: key for key, ours in NONLINEARITIES.items() if ours != "gelu"}
    if name != "gelu" and name not in theirs:
        raise ConfigError(
            f"{where}: model.nonlinearity must be one of gelu, {', '.join(theirs)}. Received: "
            f"{name!r}. Hugging Face's models have no such activation."
        )
    return tanh_gelu if name == "gelu" else theirs[name]


def refuse_ours(key, value, wanted, where, theirs):
    """Raises ConfigError where a key of our section ``model`` is a variant that they lack."""
    if value != wanted:
        raise ConfigError(
            f"{where}: model.{key} must be {wanted!r} to be converted. Received: {value!r}. "
            f"{theirs} has no such variant, so the model cannot be converted."
        )


def refuse_variants(model, wanted, where, theirs):
    """Raises ConfigError where a key of our section ``model`` has another value than wanted."""
    for key, value in wanted.items():
        refuse_ours(key, getattr(model, key), value, where, theirs)


def refuse_theirs(key, value, wanted, where):
    """Raises ConfigError where a key of their configuration is a variant that this zoo lacks."""
    if value != wanted:
        raise ConfigError(
            f"{where}: {key} must be {wanted!r} to be converted. Received: {value!r}. The zoo's "
            "model has no such variant."
        )


def refuse_others(config, where, wanted):
    """Raises ConfigError where a key of a config.json is there with another value than wanted."""
    for key, value in wanted.items():
        refuse_theirs(key, config.get(key, value), value, where)


def rate_of(model, key):
    """Returns a dropout rate of our section ``model``: its own, or where null `dropout_rate`."""
    rate = getattr(model, key)
    return model.dropout_rate if rate is None else rate


def required(config, key, where):
    """Returns the value of a key that a config.json must contain."""
    if config.get(key) is None:
        raise ConfigError(f"{where}: must have the key {key}. Received: none. Restore the file.")
    return config[key]


REQUIRED = object()  # for a key without a default


def read_keys(config, where, keys):
    """Returns what a config.json has under keys that our section ``model`` has by another name.

    Args:
        keys: triples of their key, our key, and the default there or REQUIRED.
    """
    found = {}
    for theirs, ours, default in keys:
        is_required = default is REQUIRED
        found[ours] = (
            required(config, theirs, where) if is_required else config.get(theirs, default)
        )
    return found


def write_keys(model, keys):
    """Returns what our section ``model`` has under those keys, by their names."""
    return {
        theirs: rate_of(model, ours) if ours.endswith("dropout_rate") else getattr(model, ours)
        for theirs, ours, _ in keys
    }


def gpt_tree(model_name, vocab_size, length, model):
    """Returns our YAML's dictionary of a model that predicts the next token."""
    data = {
        "data_processor": "GptTfRecordsProcessor",
        "data_dir": PLACEHOLDER_DATA_DIR,
        "vocab_size": vocab_size,
        "max_sequence_length": length,
        "batch_size": 1,
    }
    return whole_tree(model_name, data, model)


def whole_tree(model_name, data, model):
    """Returns our YAML's dictionary of its sections ``train_input`` and ``model``."""
    return {
        "model_name": model_name,
        "train_input": data,
        "eval_input": {key: data[key] for key in ("data_processor", "data_dir", "batch_size")},
        "model": {**model, "mixed_precision": False},
        "optimizer": dict(PLACEHOLDER_OPTIMIZER),
        "runconfig": {"max_steps": 1000, "eval_steps": 0},
    }


def token_ids(vocab_size, end):
    """Returns the keys of the token that begins and ends a text, null where it is no token."""
    token = end if end < vocab_size else None
    return {"bos_token_id": token, "eos_token_id": token}
