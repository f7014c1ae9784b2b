"""Params files of the original platform: which model a file is of, and its keys without effect.

They have no `model_name`: each model of the original zoo has a `run.py` of its own. Some of their
keys are never read there, or repeat what another key decides.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from cerebras_tf.api import get_logger
from cerebras_tf.errors import ConfigError
from modelzoo.common.config import registry
from modelzoo.common.config.base_params import INPUT_SECTIONS

# The models of folders of the original zoo.
FOLDERS = {
    "gpt2": "gpt3",
    "gpt3": "gpt3",
    "gptj": "gptj",
    "bert": "bert",
    "classifier": "bert.fine_tuning.classifier",
    "extractive_summarization": "bert.fine_tuning.extractive_summarization",
    "qa": "bert.fine_tuning.question_answering",
    "token_classifier": "bert.fine_tuning.token_classifier",
    "transformer": "transformer",
    **{name: name for name in registry.LACKING},
}
LANGUAGE_MODELS = ("gpt3", "gptj")
ALL = (*LANGUAGE_MODELS, "bert", "transformer")


@dataclass(frozen=True)
class UnreadKey:
    """A key that params files of the original have, and that changes no number.

    Attributes:
        section: name of its section; "input" for every input section.
        models: names of the models, of which it is a key; a name includes its fine-tunings.
        reason: why it has no effect.
        value: the value that it must have, as another one would change numbers; None for any.
        same_as: section and key whose value it must have where the file has them.
    """

    section: str
    key: str
    models: Sequence[str]
    reason: str
    value: Any = None
    same_as: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """What its value must be; "" for any."""
        return ".".join(self.same_as) if self.value is None else str(self.value)

    def is_allowed(self, value: Any, tree: Any) -> bool:
        """Whether it has no effect with a value, in a params file."""
        if not self.same_as:
            return self.value is None or bool(value == self.value)
        section, key = self.same_as
        keys = tree.get(section)
        return not isinstance(keys, dict) or bool(value == keys.get(key, value))


UNREAD_KEYS = (
    UnreadKey("input", "mixed_precision", ALL, "model.mixed_precision decides"),
    UnreadKey("input", "add_special_tokens", LANGUAGE_MODELS, "only writers of records add them"),
    UnreadKey(
        "input",
        "add_special_tokens",
        ("bert.fine_tuning.classifier",),
        "the tokens are always added",
        True,
    ),
    UnreadKey("input", "max_predictions_per_seq", ("bert.fine_tuning",), "no tokens are masked"),
    UnreadKey("input", "num_buckets", ("transformer",), "only `buckets` is read"),
    UnreadKey(
        "model",
        "vocab_size",
        LANGUAGE_MODELS,
        "train_input.vocab_size decides",
        same_as=("train_input", "vocab_size"),
    ),
    UnreadKey("model", "use_cache", ("gptj",), "training needs no cache", False),
    UnreadKey("model", "use_position_embeddings", ("gptj",), "positions are rotary", False),
    UnreadKey(
        "model",
        "cls_dropout_rate",
        ("bert.fine_tuning.question_answering",),
        "the task has no such layer",
    ),
    UnreadKey("model", "enable_gpu_optimizations", ("bert",), "it is for GPUs"),
    UnreadKey("runconfig", "enable_gpu_optimizations", ("bert",), "it is for GPUs"),
    UnreadKey("optimizer", "beta_1", ALL, "beta1 is 0.9 by default", 0.9),
    UnreadKey("optimizer", "beta_2", ALL, "beta2 is 0.999 by default", 0.999),
)


def unread_keys(model_name: str, section: str) -> dict[str, UnreadKey]:
    """Returns the keys without effect of a section, by name."""
    kind = "input" if section in INPUT_SECTIONS else section
    return {
        each.key: each
        for each in UNREAD_KEYS
        if each.section == kind and any(f"{model_name}.".startswith(m) for m in each.models)
    }


def without_unread_keys(tree: Any, report: Any) -> tuple[Any, list[str]]:
    """Returns `tree` without its keys that have no effect, and these with the reasons."""
    found = []
    tree = dict(tree)
    for section, keys in tree.items():
        if not isinstance(keys, dict):
            continue
        unread = unread_keys(tree["model_name"], section)
        for key in [key for key in keys if key in unread]:
            path, each = f"{section}.{key}", unread[key]
            if each.is_allowed(keys[key], tree):
                found.append(f"{path} ({each.reason})")
            else:
                report.add(path, f"{path} must be {each.allowed}: {each.reason}.", keys[key])
        tree[section] = {key: value for key, value in keys.items() if key not in unread}
    return tree, found


def log_unread(path: str, keys: Sequence[str]) -> None:
    """Logs the keys of a params file that have no effect, in one line."""
    if keys:
        get_logger().warning("%s: keys without effect: %s", path, ", ".join(keys))


def find_model(tree: Any, path: str) -> str:
    """Returns the model of a params file without `model_name`.

    It is the one that has the data processor and all keys of the section ``model``; of several or
    none, that of the file's folder in the original zoo; else the only one that has the data
    processor.

    Raises:
        ConfigError: several or no models fit.
    """
    section, model = tree.get("train_input"), tree.get("model")
    processor = section.get("data_processor") if isinstance(section, dict) else None
    keys = set(model) if isinstance(model, dict) else set()
    fitting = [name for name in registry.model_names() if processor in _processors(name)]
    exact = [name for name in fitting if keys <= _model_keys(name)]
    parts = Path(path).resolve().parent.parts
    folders = [FOLDERS[part] for part in reversed(parts) if part in FOLDERS]
    folder = next((name for name in folders if not exact or name in exact), None)
    found = _only(exact) or folder or _only(fitting)
    if found is None:
        fits = ", ".join(exact or fitting) or "none"
        raise ConfigError(
            f"{path}: model_name is required, or --model, because data processor and model keys do "
            f"not determine the model. Received: train_input.data_processor {processor!r}, which "
            f"models have: {fits}. Add it to the file."
        )
    return found


def _only(names: Sequence[str]) -> Optional[str]:
    return names[0] if len(names) == 1 else None


def _fields(name: str) -> dict[str, Any]:
    cls = registry.params_class(name, name)
    return {field.name: field for field in dataclasses.fields(cls)}


def _processors(name: str) -> Sequence[str]:
    return tuple(_fields(name)["train_input"].metadata["build"].classes)


def _model_keys(name: str) -> set[str]:
    section = _fields(name)["model"].type
    return {field.name for field in dataclasses.fields(section)} | set(unread_keys(name, "model"))
