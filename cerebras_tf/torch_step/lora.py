"""LoRA: trains small additions to frozen weights; reads and writes no files.

Letters: R rank, I inputs, O outputs of a layer. Source: Hu et al., LoRA: Low-Rank Adaptation of
Large Language Models, 2021.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Union

import torch
import torch.nn.functional as F

from cerebras_tf.errors import ConfigError

ALL_LINEAR = "all-linear"
_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class LoraSettings:
    """What LoRA adds to a model.

    Attributes:
        rank: R.
        alpha: the addition is multiplied by alpha / rank.
        dropout: probability that an input of the addition is dropped.
        targets: names of modules, or ends of names such as "q_proj"; "all-linear": all linear
            layers but the output projection and new layers.

    Raises:
        ConfigError: a value is invalid.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: Union[str, tuple[str, ...]] = ALL_LINEAR

    def __post_init__(self) -> None:
        if not isinstance(self.targets, str):
            object.__setattr__(self, "targets", tuple(self.targets))
        elif self.targets != ALL_LINEAR:
            object.__setattr__(self, "targets", (self.targets,))
        checks = {
            "rank": (isinstance(self.rank, int) and self.rank > 0, "a positive integer"),
            "alpha": (self.alpha > 0, "positive"),
            "dropout": (0 <= self.dropout < 1, "at least 0 and below 1"),
            "targets": (bool(self.targets), f"names of modules, or {ALL_LINEAR}"),
        }
        for name, (holds, rule) in checks.items():
            if not holds:
                raise ConfigError(
                    f"lora.{name}: must be {rule}. Received: {getattr(self, name)!r}."
                )


class LoraLinear(torch.nn.Module):  # type: ignore[misc]
    """A frozen linear layer and its addition: y = base(x) + scale B A dropout(x).

    A [R, I] is random and B [O, R] zero at the start, so that the model does not change.
    """

    def __init__(self, base: torch.nn.Module, settings: LoraSettings) -> None:
        super().__init__()
        self.base, self.rate = base, settings.dropout
        self.scale = settings.alpha / settings.rank
        inputs, outputs = sizes(base)
        self.lora_A = torch.nn.Parameter(torch.empty(settings.rank, inputs))
        self.lora_B = torch.nn.Parameter(torch.zeros(outputs, settings.rank))
        torch.nn.init.kaiming_uniform_(self.lora_A, math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., I] -> [..., O]"""
        dropped = F.dropout(x, self.rate, self.training)
        return self.base(x) + F.linear(F.linear(dropped, self.lora_A), self.lora_B) * self.scale

    def addition(self, a: Any, b: Any) -> Any:
        """What is added to the base's weight, in its layout, for values of A and B."""
        product = self.scale * (b @ a)
        return product.T if is_transposed(self.base) else product


def is_transposed(layer: torch.nn.Module) -> bool:
    """Whether a linear layer's weight is [I, O], as that of Conv1D of transformers."""
    return type(layer).__name__ == "Conv1D"


def is_linear(layer: torch.nn.Module) -> bool:
    """Whether LoRA can be added to a layer."""
    return isinstance(layer, torch.nn.Linear) or is_transposed(layer)


def sizes(layer: torch.nn.Module) -> tuple[int, int]:
    """(I, O) of a linear layer."""
    rows, columns = layer.weight.shape
    return (rows, columns) if is_transposed(layer) else (columns, rows)


def add_lora(
    module: torch.nn.Module, settings: LoraSettings, new: Mapping[str, torch.Tensor]
) -> list[str]:
    """Freezes a model but for its new parameters, and adds LoRA to target layers in place.

    Args:
        new: parameters that stay trained, such as those of a new classifier.

    Returns:
        Names of the target layers.

    Raises:
        ConfigError: a target is no linear layer, matches nothing, or its weight is tied.
    """
    if any(isinstance(layer, LoraLinear) for layer in module.modules()):
        raise ConfigError("lora: must be added once. Received: a model with LoRA.")
    kept = {id(parameter) for parameter in new.values()}
    names = _targets(module, settings, kept)
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in kept)
    for name in names:
        parent, _, leaf = name.rpartition(".")
        layer = module.get_submodule(name)
        made = LoraLinear(layer, settings).train(layer.training)
        setattr(module.get_submodule(parent), leaf, made)
    return names


def _targets(module: torch.nn.Module, settings: LoraSettings, new: set[int]) -> list[str]:
    """Names of the layers that LoRA is added to.

    Args:
        new: ids of the parameters that stay trained.
    """
    layers = dict(module.named_modules())
    output = getattr(module, "get_output_embeddings", lambda: None)()
    heads = {
        name
        for name, layer in layers.items()
        if any(id(parameter) in new for parameter in layer.parameters(recurse=False))
    }
    if settings.targets == ALL_LINEAR:
        found = [
            name
            for name, layer in layers.items()
            if is_linear(layer) and layer is not output and name not in heads
        ]
    else:
        found = []
        for target in settings.targets:
            matches = [n for n in layers if n and (n == target or n.endswith(f".{target}"))]
            if not matches:
                ends = {n.rpartition(".")[2]: None for n, m in layers.items() if is_linear(m)}
                raise ConfigError(
                    f"lora.targets: every name must be that of a linear layer. Received: {target}, "
                    f"which no layer has. The model has {', '.join(list(ends)[:_SHOWN])}."
                )
            found += matches
    _check_targets(module, layers, found, heads)
    return [name for name in layers if name in set(found)]


def _check_targets(
    module: torch.nn.Module,
    layers: Mapping[str, torch.nn.Module],
    found: list[str],
    heads: set[str],
) -> None:
    uses: dict[int, int] = {}
    for _, parameter in module.named_parameters(remove_duplicate=False):
        uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for name in found:
        fault = ""
        if not is_linear(layers[name]):
            fault = f"a {type(layers[name]).__name__}"
        elif uses[id(layers[name].weight)] > 1:
            fault = "a layer whose weight is tied to another"
        elif name in heads:
            fault = "a new layer, which is trained as a whole"
        if fault:
            raise ConfigError(
                f"lora.targets: {name} must be a linear layer with a weight of its own. Received: "
                f"{fault}. Remove it."
            )
    if not found:
        raise ConfigError("lora.targets: must match a linear layer. Received: none in this model.")


def lora_layers(module: torch.nn.Module) -> Iterator[tuple[str, LoraLinear]]:
    """The layers with LoRA, by name."""
    return ((n, layer) for n, layer in module.named_modules() if isinstance(layer, LoraLinear))
