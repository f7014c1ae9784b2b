"""The optimizer of the section ``optimizer`` with torch.optim, and its learning rates."""

import math
import re
from typing import Any

import torch

from modelzoo.common.config import sections

EPSILON = 1e-8


def make_optimizer(params, module):
    """Makes the optimizer and the scheduler of a model.

    Parameters that match `exclude_from_weight_decay` are a group without weight decay.

    Returns:
        A torch.optim.Optimizer, a torch.optim.lr_scheduler.LambdaLR, and the update: clipping and
        the optimizer's step.
    """
    section = params.optimizer
    groups = parameter_groups(module, section)
    kind, rate = section.optimizer_type, 1.0  # the scheduler multiplies it
    betas = section.beta1, section.beta2
    epsilon = EPSILON if section.epsilon is None else section.epsilon
    optimizer: torch.optim.Optimizer
    if kind == "adamw":
        optimizer = torch.optim.AdamW(groups, rate, betas, epsilon)
    elif kind == "adam":
        optimizer = torch.optim.Adam(groups, rate, betas, epsilon)
    else:
        momentum = 0.9 if section.momentum is None else section.momentum
        optimizer = torch.optim.SGD(groups, rate, momentum if kind == "momentum" else 0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: learning_rate(section.learning_rate, step, not section.disable_lr_steps_reset),
    )
    parameters = [p for p in module.parameters() if p.requires_grad]

    def update():
        if section.max_gradient_norm:
            torch.nn.utils.clip_grad_norm_(parameters, section.max_gradient_norm)
        elif section.max_gradient_value:
            torch.nn.utils.clip_grad_value_(parameters, section.max_gradient_value)
        optimizer.step()

    return optimizer, scheduler, update


def parameter_groups(module, section):
    """Returns the trained parameters as groups with and without weight decay."""
    decay = section.weight_decay_rate
    kept: list[Any] = []
    plain: list[Any] = []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            excluded = any(re.search(each, name) for each in section.exclude_from_weight_decay)
            (plain if excluded else kept).append(parameter)
    groups = [(kept, decay), (plain, 0.0)] if decay else [([*kept, *plain], 0.0)]
    return [{"params": found, "weight_decay": rate} for found, rate in groups if found]


def learning_rate(pieces, step, reset_steps=True):
    """Returns the learning rate of a step; see modelzoo.common.optimizers.schedules."""
    start, chosen = 0, 0
    for piece in pieces[:-1]:
        end = start + sections.piece_steps(piece)
        if step < end:
            break
        start, chosen = end, chosen + 1
    return rate_of(pieces[chosen], step - start if reset_steps else step)


def rate_of(piece, step):
    """Returns the learning rate of a piece of a schedule, at its own step."""
    if isinstance(piece, sections.ConstantRate):
        return piece.learning_rate
    if isinstance(piece, sections.ExponentialRate):
        power = step / piece.decay_steps
        power = math.floor(power) if piece.staircase else power
        return piece.initial_learning_rate * piece.decay_rate**power
    if isinstance(piece, sections.PiecewiseConstantRate):
        pairs = zip(piece.boundaries, piece.values)
        return next((value for end, value in pairs if step <= end), piece.values[-1])
    if isinstance(piece, sections.CosineRate):
        cosine = 0.5 * (1 + math.cos(math.pi * min(step / piece.decay_steps, 1.0)))
        return piece.initial_learning_rate * ((1 - piece.alpha) * cosine + piece.alpha)
    length = piece.steps
    if piece.cycle:
        length *= max(math.ceil(step / length), 1)
    left = (1 - min(step / length, 1.0)) ** piece.power
    span = piece.initial_learning_rate - piece.end_learning_rate
    return span * left + piece.end_learning_rate
