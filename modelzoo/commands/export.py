"""Writes a folder of transformers, or an adapter of peft, from a run of a transformers model.

For example::

    cerebras-tf convert export model_dir/chat my_adapter
    cerebras-tf convert export model_dir/chat/step-000100 my_model --merge_lora --dtype bfloat16
"""

from pathlib import Path

from cerebras_tf.api import gigabytes
from cerebras_tf.errors import ConfigError
from modelzoo.common.config import registry
from modelzoo.common.config.params import load_params

PARAMS = "params.yaml"
TYPES = ("float32", "float16", "bfloat16")


def add_arguments(parser):
    """Adds the command's arguments."""
    add = parser.add_argument
    add("source", help="folder of a run of a transformers model, or of one of its checkpoints")
    add("output", help="folder of the model or the adapter")
    add("--dtype", choices=TYPES, help="type of the weights (default: that of model.pretrained)")
    add("--merge_lora", action="store_true", help="add LoRA to the weights")
    add("--max_shard_gb", type=gigabytes, default=5.0, help="maximum size of a file, GB")
    add("--overwrite", action="store_true", help="replace an existing model")


def run(args):
    """Writes the folder."""
    source = Path(args.source)
    is_run = (source / PARAMS).exists()
    folder = source if is_run else source.parent
    overrides = {
        "runconfig.model_dir": str(folder),
        "runconfig.checkpoint_path": None if is_run else str(source),
        "export": {
            "dtype": args.dtype,
            "merge_lora": args.merge_lora,
            "max_shard_gb": args.max_shard_gb,
        },
    }
    params = load_params(folder / PARAMS, overrides)
    if params.model_name not in registry.TORCH_MODELS:
        raise ConfigError(
            f"{folder / PARAMS}: must be the params file of a transformers model. Received: "
            f"model_name {params.model_name}. Use `cerebras-tf convert from_tf`."
        )
    registry.load_engine(params.model_name).export(params, args.output, args.overwrite)
    print(f"{args.output}: {args.source}")
