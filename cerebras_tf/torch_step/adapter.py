"""LoRA adapters as peft writes them: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Union

import torch

from cerebras_tf.errors import CheckpointError
from cerebras_tf.memoryx.safetensors_file import TensorFile
from cerebras_tf.memoryx.store import FileRegion
from cerebras_tf.torch_step.lora import LoraSettings, is_linear, is_transposed, lora_layers
from cerebras_tf.user_files import read_json, reason

ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."
_PARTS = ("lora_A", "lora_B")
# Keys of peft's config that do not change what an adapter computes; the tensors name the layers.
_WITHOUT_EFFECT = re.compile(
    "task_type|peft_version|auto_mapping|base_model_name_or_path|revision|inference_mode|"
    "target_modules|exclude_modules|layers_to_transform|layers_pattern|fan_in_fan_out|"
    "modules_to_save|(loftq|eva|corda|lora_ga|runtime)_config|megatron_core|qalora_group_size|"
    "ensure_weight_tying"
)
_READ = ("peft_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "bias", "init_lora_weights")
# Initial values that leave the weights of the model as they are.
_INITIAL = (None, True, False, "gaussian", "eva", "orthogonal")
_SHOWN = 3


class AdapterFolder:
    """A folder with an adapter.

    Attributes:
        path: the folder.
        settings: of LoRA; targets are the names of all layers.
        regions: where tensors are, by their names in the model with LoRA.

    Raises:
        CheckpointError: a file is missing or damaged, or the adapter has another form of LoRA.
    """

    def __init__(self, path: Union[str, Path]) -> None:
        self.path = Path(path)
        self._file = self.path / ADAPTER_CONFIG
        config = read_object(self._file)
        for key, value in config.items():
            fits = {
                "peft_type": value == "LORA",
                "bias": value in (None, "none"),
                "init_lora_weights": value in _INITIAL,
            }.get(key, key in _READ or bool(_WITHOUT_EFFECT.fullmatch(key)) or not value)
            if not fits:
                raise CheckpointError(
                    f"{self._file}: must describe LoRA as LoraSettings does. Received: {key} "
                    f"{str(value)[:80]}. Merge this adapter into the model by peft."
                )
        found = TensorFile(self.path / ADAPTER).regions
        self.regions = {_own_name(name): region for name, region in found.items()}
        suffix = f".{_PARTS[0]}"
        targets = [n.removesuffix(suffix) for n in self.regions if n.endswith(suffix)]
        try:
            rank, alpha = config["r"], float(config.get("lora_alpha", 8))
            if config.get("use_rslora"):
                alpha *= math.sqrt(rank)  # the addition is scaled by alpha / sqrt(rank)
            dropout = float(config.get("lora_dropout", 0))
            self.settings = LoraSettings(rank, alpha, dropout, tuple(targets))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{self._file}: must have r, lora_alpha and lora_dropout of a LoRA with layers. "
                f"Received: {error} Use the folder that peft wrote."
            ) from error

    def check_layers(self, module: torch.nn.Module) -> None:
        """Raises CheckpointError if a model lacks layers of the adapter."""
        layers = dict(module.named_modules())
        missing = [name for name in self.settings.targets if name not in layers]
        if missing:
            raise CheckpointError(
                f"{self.path / ADAPTER}: must be an adapter of {type(module).__name__}. Received: "
                f"one with LoRA of {_listed(missing)}. Use the adapter of this model."
            )

    def take(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, FileRegion]:
        """The regions of parameters.

        Raises:
            CheckpointError: the adapter has other tensors, or other shapes.
        """
        faults = [f"no {name}" for name in parameters if name not in self.regions]
        faults += [f"also {name}" for name in self.regions if name not in parameters]
        for name, region in self.regions.items():
            if name in parameters and region.shape != tuple(parameters[name].shape):
                wanted = list(parameters[name].shape)
                faults.append(f"{name} of shape {list(region.shape)}, not {wanted}")
        if faults:
            raise CheckpointError(
                f"{self.path / ADAPTER}: must have the tensors of LoRA and of the model's new "
                f"layers. Received: {_listed(faults)}. Use an adapter of this model and class."
            )
        return self.regions


def _own_name(name: str) -> str:
    """The name in the model of a tensor of an adapter."""
    name = name.removeprefix(_PREFIX)
    stem = name.removesuffix(".weight")
    return stem if stem.rpartition(".")[2] in _PARTS else name


def adapter_tensors(
    module: torch.nn.Module, new: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """What an adapter holds: LoRA and new parameters, by their names in the model."""
    found = {
        f"{n}.{key}": getattr(layer, key) for n, layer in lora_layers(module) for key in _PARTS
    }
    return {**found, **new}


def adapter_name(name: str) -> str:
    """The name in an adapter's file of a tensor of the model."""
    ending = ".weight" if name.rpartition(".")[2] in _PARTS else ""
    return f"{_PREFIX}{name}{ending}"


def adapter_config(
    module: torch.nn.Module,
    settings: LoraSettings,
    targets: list[str],
    new: Mapping[str, torch.Tensor],
    base: str,
) -> dict[str, Any]:
    """What adapter_config.json of peft holds."""
    linear = {
        name.removesuffix(".base") for name, layer in module.named_modules() if is_linear(layer)
    }
    ends = sorted({name.rpartition(".")[2] for name in targets})
    by_end = {n for n in linear if n.rpartition(".")[2] in ends} == set(targets)
    layers = [layer for _, layer in lora_layers(module)]
    return {
        "peft_type": "LORA",
        "task_type": _TASKS.get(type(module).__name__.partition("For")[2]),
        "base_model_name_or_path": base,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        "target_modules": ends if by_end else sorted(targets),
        "fan_in_fan_out": any(is_transposed(layer.base) for layer in layers),
        "bias": "none",
        "modules_to_save": sorted({n.rpartition(".")[0] for n in new}) or None,
        "inference_mode": True,
    }


_TASKS = {
    "CausalLM": "CAUSAL_LM",
    "SequenceClassification": "SEQ_CLS",
    "TokenClassification": "TOKEN_CLS",
    "QuestionAnswering": "QUESTION_ANS",
}


def read_object(path: Path) -> dict[str, Any]:
    """The object of a JSON file of a model; raises CheckpointError for others."""
    return read_file(path, lambda path: read_json(path, dict))


def read_file(path: Path, reader: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """What a reader of user_files returns for a file of a model; raises CheckpointError."""
    try:
        return reader(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: must be a JSON file of a model. Received: {reason(error)}. Use the folder "
            "with all files of the model."
        ) from error


def _listed(items: list[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more
