"""Optimizers and learning rate schedules whose steps run on the wafer."""

from __future__ import annotations

from cerebras.pytorch.optim import lr_scheduler
from cerebras.pytorch.optim.configure import (
    configure_lr_scheduler,
    configure_optimizer,
    configure_param_groups,
)
from cerebras.pytorch.optim.optimizers import (
    ASGD,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamBase,
    AdamW,
    Lamb,
    Lion,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
)

__all__ = [
    "ASGD",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamBase",
    "AdamW",
    "Adamax",
    "Lamb",
    "Lion",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "configure_lr_scheduler",
    "configure_optimizer",
    "configure_param_groups",
    "lr_scheduler",
]
