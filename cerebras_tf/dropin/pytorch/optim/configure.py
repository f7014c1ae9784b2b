"""Optimizers and learning rate schedules from the keys of a params file."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import torch

from cerebras.pytorch.optim import lr_scheduler, optimizers
from cerebras_tf.errors import ConfigError

_LOG = logging.getLogger("cerebras.pytorch")
# Keys of params files, and the arguments that they are.
_OPTIMIZER_KEYS = {
    "epsilon": "eps",
    "use_nesterov": "nesterov",
    "weight_decay_rate": "weight_decay",
}
# Arguments that are pairs, and the keys of the two numbers.
_PAIRS = {
    "betas": ("beta1", "beta2"),
    "eps": ("eps1", "eps2"),
    "etas": ("eta1", "eta2"),
    "step_sizes": ("step_size_min", "step_size_max"),
}
# Keys that have no effect if they are 0 or False.
_OPTIONAL_KEYS = ("disable_lr_steps_reset", "weight_decay")
# Keys of the section "optimizer" that belong to others.
_OTHER_KEYS = {
    *("learning_rate", "adjust_learning_rate", "log_summaries"),
    *("loss_scaling_factor", "initial_loss_scale", "steps_per_increase", "min_loss_scale"),
    *("max_loss_scale", "max_gradient_norm", "max_gradient_value", "grad_accum_steps"),
}
_SCHEDULE_KEYS = {
    "steps": "total_iters",
    "decay_steps": "total_iters",
    "t_max": "T_max",
    "t_0": "T_0",
    "t_mult": "T_mult",
    "values": "learning_rates",
    "boundaries": "milestones",
}
# Keys that are each other's synonyms.
_SYNONYMS = (("initial_learning_rate", "learning_rate", "base_lr"), ("decay_rate", "gamma"))
_NORMS = (
    *(torch.nn.LayerNorm, torch.nn.RMSNorm, torch.nn.GroupNorm, torch.nn.SyncBatchNorm),
    *(torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d),
    *(torch.nn.InstanceNorm1d, torch.nn.InstanceNorm2d, torch.nn.InstanceNorm3d),
)


def _by_lower_name(module: Any, base: type) -> dict[str, Any]:
    """The concrete classes of a module, by name."""
    return {
        name.lower(): kind
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, base) and not name.startswith("_")
        if kind is not base and not inspect.isabstract(kind)
    }


def configure_param_groups(
    model: torch.nn.Module, optimizer_params: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The parameters of a model in groups.

    Biases and the parameters of normalization layers have no weight decay. The keys of
    `adjust_learning_rate` are kinds of parameters, "decoder_kernel" or "embedding", and their
    values scale the learning rate.
    """
    decay = optimizer_params.get("weight_decay_rate", optimizer_params.get("weight_decay", 0.0))
    scales = dict(optimizer_params.get("adjust_learning_rate") or {})
    norms = {name for name, module in model.named_modules() if isinstance(module, _NORMS)}
    groups: dict[tuple[bool, Optional[str]], list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = "bias" not in name and name.rpartition(".")[0] not in norms
            kind = next((kind for kind in scales if _is_of_kind(kind, name)), None)
            groups.setdefault((decays, kind), []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": decay if decays else 0.0,
            **({"adjust_learning_rate": scales.get(kind, 1.0)} if scales else {}),
        }
        for (decays, kind), parameters in groups.items()
    ]


def _is_of_kind(kind: str, name: str) -> bool:
    """Whether a parameter is of a kind of `adjust_learning_rate`."""
    if kind == "decoder_kernel":
        return "weight" in name and ("linear" in name or "dense" in name)
    if kind == "embedding":
        return "weight" in name and "embedding" in name
    raise ConfigError(
        f"adjust_learning_rate: keys must be decoder_kernel or embedding. Received: {kind}."
    )


def configure_optimizer(optimizer_type: str, params: Any, **options: Any) -> Any:
    """Makes an optimizer.

    Args:
        optimizer_type: the name of a class, such as AdamW, in any case.
        params: parameters, or groups of them.
        options: keys of the section "optimizer" of a params file.

    Raises:
        ConfigError: there is no such optimizer.
    """
    known = _by_lower_name(optimizers, optimizers.Optimizer)
    kind = known.get(optimizer_type.lower())
    if kind is None:
        names = ", ".join(sorted(each.__name__ for each in known.values()))
        raise ConfigError(f"optimizer_type: must be one of {names}. Received: {optimizer_type}.")
    rate = options.get("learning_rate", options.get("lr", 0.1))
    found: dict[str, Any] = {"lr": rate if isinstance(rate, (int, float, str)) else 0.1}
    found["lr"] = float(found["lr"])
    allowed = _arguments(kind)
    given = {_OPTIMIZER_KEYS.get(name, name): value for name, value in options.items()}
    for name, parts in _PAIRS.items():
        if name in allowed and not given.keys().isdisjoint(parts):
            default = _default(kind, name)
            pair = [given.pop(part, old) for part, old in zip(parts, default)]
            found[name] = tuple(map(float, pair))
    given.pop("lr", None)
    for name, value in given.items():
        if name in allowed:
            found[name] = float(value) if isinstance(value, str) else value
        elif name not in _OTHER_KEYS and (value or name not in _OPTIONAL_KEYS):
            _warn("optimizer", kind, name, allowed)
    return kind(params, **found)


def _warn(section: str, kind: type, key: str, allowed: set[str]) -> None:
    """Logs a key of a params file that is ignored: public files have some."""
    _LOG.warning(
        "%s: %s must have keys among %s. Received: %s, which is ignored.",
        *(section, kind.__name__, ", ".join(sorted(allowed)), key),
    )


def _signatures(kind: type) -> list[inspect.Signature]:
    return [
        inspect.signature(vars(each)["__init__"])
        for each in kind.__mro__
        if "__init__" in vars(each) and each is not object
    ]


def _arguments(kind: type) -> set[str]:
    """Names of the arguments of a class, with those of its parents that it passes on."""
    found: set[str] = set()
    for signature in _signatures(kind):
        kinds = {each.kind for each in signature.parameters.values()}
        found.update(
            name
            for name, each in signature.parameters.items()
            if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        )
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            break
    return found - {"self", "params", "optimizer", "enable_global_step", "foreach", "fused"}


def _default(kind: type, name: str) -> Any:
    for signature in _signatures(kind):
        if name in signature.parameters:
            return signature.parameters[name].default
    raise KeyError(name)


def configure_lr_scheduler(
    optimizer: Any,
    learning_rate: Union[float, str, Mapping[str, Any], Sequence[Mapping[str, Any]], None],
    adjust_learning_rate: Optional[Mapping[str, float]] = None,
) -> Optional[lr_scheduler.LRScheduler]:
    """Makes a schedule.

    Args:
        learning_rate: a number; or a dict with the key `scheduler`, the name of a class with or
            without LR; or a list of such dicts, each of which has `steps` but the last.
        adjust_learning_rate: accepted; the groups of the optimizer have the numbers.

    Raises:
        ConfigError: there is no such schedule, or a key is missing.
    """
    if learning_rate is None:
        return None
    if isinstance(learning_rate, (int, float, str)):
        return lr_scheduler.ConstantLR(optimizer, float(learning_rate))
    if isinstance(learning_rate, Mapping):
        return _schedule(optimizer, learning_rate)
    parts = [_schedule(optimizer, each) for each in learning_rate]
    if len(parts) == 1:
        return parts[0]
    milestones, total = [], 0
    for part in parts[:-1]:
        if not part.total_iters:
            raise ConfigError(
                "learning_rate: every schedule but the last must have steps. Received: none for "
                f"{type(part).__name__}."
            )
        total += part.total_iters
        milestones.append(total)
    return lr_scheduler.SequentialLR(optimizer, parts, milestones)


def _schedule(optimizer: Any, given: Mapping[str, Any]) -> lr_scheduler.LRScheduler:
    given = dict(given)
    name = str(given.pop("scheduler", "")).lower().removesuffix("lr")
    known = {
        each.removesuffix("lr"): kind
        for each, kind in _by_lower_name(lr_scheduler, lr_scheduler.LRScheduler).items()
    }
    kind = known.get(name)
    if kind is None:
        names = ", ".join(sorted(each.__name__ for each in known.values()))
        raise ConfigError(f"scheduler: must be one of {names}. Received: {name or 'none'}.")
    allowed, found = _arguments(kind) | {"total_iters"}, {}
    for key, value in given.items():
        key = _SCHEDULE_KEYS.get(key, key)
        synonyms = next((group for group in _SYNONYMS if key in group), (key,))
        key = next((each for each in (key, *synonyms) if each in allowed), key)
        if key not in allowed:
            _warn("learning_rate", kind, key, allowed)
            continue
        found[key] = float(value) if isinstance(value, str) and key not in ("mode",) else value
    total = found.get("total_iters")
    if "total_iters" not in _arguments(kind):
        found.pop("total_iters", None)
    try:
        made: lr_scheduler.LRScheduler = kind(optimizer, **found)
    except TypeError as error:
        raise ConfigError(f"learning_rate: {kind.__name__}. Received: {error}.") from error
    made.total_iters = made.total_iters or total
    return made
