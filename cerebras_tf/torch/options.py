"""The options of `fit`, besides those of the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Optional

from cerebras_tf.config.run_options import LOGGERS
from cerebras_tf.config.schema import field
from cerebras_tf.torch_step.settings import TrainingSettings


def _loggers_problem(names: tuple[str, ...]) -> Optional[str]:
    known = all(name in LOGGERS for name in names)
    return None if known else f"must be a list of {', '.join(LOGGERS)}."


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitOptions(TrainingSettings):
    """The options of `fit`; see docs/guides/pytorch.md."""

    clip: Optional[float] = field(
        None, "Norm that gradients are clipped to before `optimizer.step()`.", above=0.0
    )
    model_dir: Optional[str] = field(
        None,
        "Folder for checkpoints, events and profile. A run resumes from its newest checkpoint. "
        "null: none is written.",
    )
    save_every: int = field(1000, "Steps between checkpoints.", minimum=1)
    keep: int = field(5, "Maximum number of checkpoints to keep. 0: all.", minimum=0)
    log_every: int = field(100, "Steps between lines on the console and scalars.", minimum=1)
    loggers: tuple[str, ...] = field(
        ("tensorboard",), "Logs of scalars in model_dir.", check=_loggers_problem
    )
    eval_every: Optional[int] = field(
        None, "Steps between evaluations. null: only after the last step.", minimum=1
    )
    eval_steps: Optional[int] = field(
        None, "Batches of an evaluation. null: the whole loader.", minimum=1
    )
    eval_at_end: bool = field(True, "Whether the last step is evaluated.")
    profile: Optional[int] = field(
        None, "Number of steps to profile after the first two, in model_dir.", minimum=1
    )
    seed: Optional[int] = field(
        None, "Seed of dropout. null: `torch.initial_seed()`. A resumed run keeps its seed."
    )
    resume_data: bool = field(
        True, "Whether a resumed run continues with the next batch; else with a new epoch."
    )

    def problems(self) -> Iterator[str]:
        """What is wrong between options."""
        yield from super().problems()
        needing = ("save_every", "keep", "loggers", "resume_data", "profile")
        defaults = {each.name: each.default for each in dataclasses.fields(self)}
        for name in needing if self.model_dir is None else ():
            value = getattr(self, name)
            if value != defaults[name]:
                yield f"{name} needs model_dir. Received: {value!r} without it. Set that too."
