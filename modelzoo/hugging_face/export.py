"""Writes trained models as folders of transformers, and LoRA as adapters of peft."""

from pathlib import Path

from modelzoo.common.train import torch_engine
from modelzoo.common.train.console import logger
from modelzoo.common.train.torch_engine import TensorFile, TensorType, whole_folder, write_shards
from modelzoo.hugging_face.chat import load_tokenizer, read_template
from modelzoo.hugging_face.model import ExtractiveSummarizer, LoadedModel, name_in_file

FOLDER = "export"  # in model_dir
TEMPLATE = "chat_template.jinja"
# The last one makes the others a model.
PATTERNS = (
    *("[!cm]*.json", "*.txt", "*.jinja", "*.model", "model*.safetensors", "model*.json"),
    "config.json",
)


def export_trained(params, checkpoint, again=True):
    """Writes ``model_dir/export`` when training ends, unless the section ``export`` forbids it.

    Args:
        again: whether a folder that is there already is replaced.
    """
    target = Path(params.runconfig.model_dir, FOLDER)
    if torch_engine.is_first() and params.export.at_end and (again or not target.exists()):
        write_export(params, checkpoint, target, overwrite=True)
        what = "peft" if is_adapter(params) else "transformers"
        logger().info("wrote %s, which %s opens", target, what)


def is_adapter(params):
    """Whether an adapter is written and not a whole model."""
    return params.lora is not None and not params.export.merge_lora


def write_export(params, checkpoint, target, overwrite=False):
    """Writes the weights of a checkpoint, as the section ``export`` says.

    Args:
        target: the folder. It is complete, or not written.

    Raises:
        CheckpointError: there is a model already, and `overwrite` is False; or the checkpoint is
            that of another model.
    """
    model, settings = LoadedModel(params), params.export
    pretrained = model.pretrained
    template = read_template(getattr(params.train_input, "chat_template", None))
    texts = {} if template is None else {TEMPLATE: template}
    size = int(settings.max_shard_gb * 1e9)
    if is_adapter(params):
        assert pretrained is not None
        pretrained.save_adapter(target, checkpoint, overwrite, texts)
    elif pretrained is not None:
        pretrained.save(target, checkpoint, settings.dtype, overwrite, size, texts)
    else:
        model.weights(checkpoint)  # checks the checkpoint
        with whole_folder(target, PATTERNS, overwrite) as folder:
            write_model(params, model.module, checkpoint, folder, settings.dtype, size)
            for name, text in texts.items():
                (folder / name).write_text(text, encoding="utf-8")


def write_model(params, module, checkpoint, folder, dtype, size):
    """Writes the files of a model that was trained from random weights."""
    regions = TensorFile(Path(checkpoint, "model.safetensors")).regions
    inner = getattr(module, "encoder", module)
    named = name_in_file if isinstance(module, ExtractiveSummarizer) else str
    specs = {
        named(name): TensorType(dtype if dtype and r.dtype == "float32" else r.dtype, r.shape)
        for name, r in regions.items()
    }
    tensors = zip(specs, (region.read() for region in regions.values()))
    write_shards(folder, specs, tensors, size)
    config = inner.config
    config.architectures, config.dtype = [type(inner).__name__], dtype or "float32"
    config.save_pretrained(folder)
    if getattr(inner, "generation_config", None) is not None:
        inner.generation_config.save_pretrained(folder)
    tokenizer = getattr(params.train_input, "tokenizer", None)
    if tokenizer is not None and Path(tokenizer).is_dir():
        load_tokenizer(tokenizer).save_pretrained(folder)
