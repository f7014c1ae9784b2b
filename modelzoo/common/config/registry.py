"""Finds the models of the zoo: every folder of modelzoo/ with a params.py is one.

A model is imported on first use; its name is its folder, with dots for slashes (``gpt3``,
``bert.fine_tuning.classifier``). The models of transformers are in one folder, and have the names
of TORCH_MODELS.
"""

import importlib
import importlib.util
import re
from pathlib import Path

from cerebras_tf.errors import ConfigError
from cerebras_tf.suggestions import did_you_mean

ROOT = Path(__file__).resolve().parents[2]
TORCH_FOLDER = "hugging_face"
TORCH_MODELS = (
    "hf_causal_lm",
    "hf_extractive_summarization",
    "hf_question_answering",
    "hf_sequence_classification",
    "hf_token_classification",
)

# Models of the original zoo that this one lacks.
LACKING = {"fc_mnist": "FC-MNIST", "linformer": "Linformer", "t5": "T5", "unet": "U-Net"}


def model_names():
    """Returns the sorted names of all models that TensorFlow's estimator trains."""
    folders = (path.parent.relative_to(ROOT) for path in ROOT.rglob("params.py"))
    others = ("common", TORCH_FOLDER)
    return sorted(".".join(folder.parts) for folder in folders if folder.parts[0] not in others)


def folder_of(name):
    """Returns the folder of a model below modelzoo/, with slashes."""
    return TORCH_FOLDER if name in TORCH_MODELS else name.replace(".", "/")


def load_engine(name):
    """Imports the module that runs a model without TensorFlow; None for other models.

    It has ``run_mode(mode, params)`` and ``generate(args, params)``.
    """
    if name not in TORCH_MODELS:
        return None
    return importlib.import_module(f"modelzoo.{TORCH_FOLDER}.engine")


def params_class(name, where):
    """Returns the class `Params` of the model `name`, without importing TensorFlow."""
    names = [*model_names(), *TORCH_MODELS]
    lacking = LACKING.get(str(name).lower())
    if lacking:
        raise ConfigError(
            f"{where}: the model must be one of {', '.join(names)}. Received: {lacking}, a model "
            "of the original zoo only. Run the original zoo's own run.py of it with csrun_wse; it "
            "trains on the wafer."
        )
    if name not in names:
        advice = did_you_mean(str(name), names) or "Name one of them."
        raise ConfigError(
            f"{where}: model_name must be one of {', '.join(names)}. Received: {name!r}. {advice}"
        )
    if name in TORCH_MODELS:
        return importlib.import_module(f"modelzoo.{TORCH_FOLDER}.params").PARAMS[name]
    return importlib.import_module(f"modelzoo.{name}.params").Params


def summary(path):
    """Returns the first sentence of the comment that a params file begins with, or nothing."""
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    text = " ".join(line.lstrip("# ") for line in lines[:end])
    return re.split(r"(?<!et al)\. ", text)[0].rstrip(".:")


def find_prediction(name):
    """Imports ``prediction.py`` of the model `name`, where predict mode does more than write rows.

    Returns the module, with ``predict(estimator, inputs, params, checkpoint_path, use_cs)``, or
    None. Where its steps are not those of ``inputs.predict``, ``compile_prediction(estimator,
    inputs, params, **options)`` compiles them.
    """
    row = find_table_row(name)
    if row is not None:
        return row
    module = f"modelzoo.{name}.prediction"
    return importlib.import_module(module) if importlib.util.find_spec(module) else None


def find_table_row(name):
    """Returns the row of a model that is defined in a table; None for other models.

    The table is `TASKS` in ``tasks.py`` of the folder above the model's. A row has what other
    models define in ``model.py``, ``data.py`` and ``prediction.py``.
    """
    family, _, task = name.rpartition(".")
    module = f"modelzoo.{family}.tasks"
    if not family or importlib.util.find_spec(module) is None:
        return None
    return importlib.import_module(module).TASKS[task]


def load_model(name):
    """Imports ``model.py`` and ``data.py`` of the model `name` and returns both modules.

    For a model in a table both are its row.
    """
    row = find_table_row(name)
    if row is not None:
        return row, row
    model = importlib.import_module(f"modelzoo.{name}.model")
    data = importlib.import_module(f"modelzoo.{name}.data")
    return model, data
