"""What runs of language models took and reached: their compute and their last loss."""

import math
from dataclasses import dataclass
from pathlib import Path

from cerebras_tf.errors import DataError
from modelzoo.common.config.model_sections import count_vocabulary
from modelzoo.common.config.params import load_params
from modelzoo.common.files.path_advice import advice_on_path
from modelzoo.common.scaling.law import training_flops

# Tags from which nats a token follow, the best first: of the last evaluation, and of training. The
# loss is one where `_of_token` knows what it is the mean of.
_LOSS, _PERPLEXITY = "loss", "eval/lm_perplexity"
_EVALUATED, _TRAINED = (_PERPLEXITY, _LOSS), ("train/lm_cost", _LOSS)
# Of training, the mean over this share of the steps that were shown last.
_LAST = 0.1


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        evaluated: whether the loss is that of an evaluation; else of the last training steps.
    """

    name: str
    flops: float
    loss: float
    evaluated: bool

    @property
    def kind(self):
        """What the loss is of, in a word."""
        return "evaluation" if self.evaluated else "training"


def require_run(folder):
    """Returns the params.yaml of a run's folder."""
    file = Path(folder, "params.yaml")
    if not file.is_file():
        raise DataError(
            f"scaling fit: {folder}: must be the model_dir of a run. Received: no params.yaml in "
            f"it. {advice_on_path(folder, 'Use model folders of training runs.')}"
        )
    return file


def read_run(folder):
    """The run in a model folder, read from its params.yaml and its events."""
    from modelzoo.common.model_dir.resume import read_history, stretches_by

    place = Path(folder)
    params = load_params(require_run(folder))
    model, section = params.model, params.train_input
    sizes = [getattr(model, key, None) for key in ("hidden_size", "num_hidden_layers")]
    if None in sizes or params.model_name not in ("gpt3", "gptj"):
        raise DataError(
            f"scaling fit: {folder}: must be a run of gpt3 or gptj. Received: {params.model_name}. "
            "Remove it."
        )
    tag, shown = _shown(place / "eval", _EVALUATED)
    evaluated = bool(shown)
    if not evaluated:
        tag, shown = _shown(place, _TRAINED)
    if not shown:
        raise DataError(
            f"scaling fit: {folder}: must have losses in its event files. Received: none. Set "
            "runconfig.save_summary_steps, and train again."
        )
    steps = sorted(shown)
    last = steps[-1:] if evaluated else steps[-max(1, round(_LAST * len(steps))) :]
    losses = [_of_token(shown[step], tag, model, folder) for step in last]
    stretches = stretches_by(
        steps[-1],
        read_history(folder),
        params.batches_per_step,
        (section.batch_size, section.max_sequence_length),
    )
    flops = sum(
        training_flops(
            model.hidden_size,
            model.num_hidden_layers,
            model.num_heads,
            model.filter_size,
            count_vocabulary(section),
            length,
            batches * size * length,
        )
        for batches, size, length in stretches
    )
    if not flops:
        raise DataError(
            f"scaling fit: {folder}: must be trained. Received: a loss at step 0, with 0 FLOP. "
            "Train it, or remove it."
        )
    return Run(place.name, flops, sum(losses) / len(losses), evaluated)


def _of_token(value, tag, model, folder):
    """Nats a token for a value of a tag."""
    if not math.isfinite(value):
        raise DataError(
            f"scaling fit: {folder}: its loss must be a number. Received: {value}. Remove it."
        )
    if tag == _PERPLEXITY:
        return math.log(value)
    if tag != _LOSS:
        return value
    scaling = getattr(model, "loss_scaling", "num_tokens")
    if scaling != "num_tokens":
        raise DataError(
            f"scaling fit: {folder}: must have a loss per token. Received: model.loss_scaling "
            f"{scaling} and no {_PERPLEXITY}. Evaluate it with metrics."
        )
    return value / getattr(model, "loss_weight", 1.0)


def _shown(folder, tags):
    """The first of the tags that the folder's events have, and its values by step."""
    found: dict[str, dict[int, float]] = {tag: {} for tag in tags}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in _events(path):
            for value in event.summary.value:
                if value.tag in found and value.HasField("simple_value"):
                    found[value.tag][event.step] = value.simple_value
    return next(((tag, shown) for tag, shown in found.items() if shown), (None, {}))


def _events(path):
    """Yields the events of a file; of one that a killed run left, those that are whole."""
    import tensorflow as tf

    try:
        yield from tf.compat.v1.train.summary_iterator(str(path))
    except tf.errors.DataLossError as error:
        if not error.message.startswith("truncated record"):
            raise DataError(
                f"scaling fit: {path}: must be a TensorBoard event file. Received: "
                f"{error.message}. Restore the file, or move it away."
            ) from error
