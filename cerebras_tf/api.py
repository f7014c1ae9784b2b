"""The names that tools built on cerebras_tf may import, besides those of `cerebras_tf` itself.

For example::

    from cerebras_tf.api import CheckpointReader, load_system

Other modules are internal and change without notice. docs/reference/api.md documents every name.
Like those of `cerebras_tf`, names are loaded on first use, so that importing this is cheap.
"""

from __future__ import annotations

import importlib
from typing import Any

# The module of each name. After a colon stands the name in its module, where that differs.
_PUBLIC = {
    # Command lines.
    "any_int": "cerebras_tf.cli.parser",
    "any_number": "cerebras_tf.cli.parser",
    "gigabytes": "cerebras_tf.cli.parser",
    "counted": "cerebras_tf.quantities",
    "in_bytes": "cerebras_tf.quantities",
    "positive_int": "cerebras_tf.cli.parser",
    "positive_number": "cerebras_tf.cli.parser",
    "seed_int": "cerebras_tf.cli.parser",
    "step_int": "cerebras_tf.cli.parser",
    "Parser": "cerebras_tf.cli.parser",
    "format_rows": "cerebras_tf.cli.parser",
    "USER_ERROR": "cerebras_tf.cli.exit_codes",
    "EventFile": "cerebras_tf.console.event_file",
    "get_logger": "cerebras_tf.console.log",
    "progress_bar": "cerebras_tf.console.bar",
    "run_main": "cerebras_tf.cli.exit_codes",
    "without_lines": "cerebras_tf.tf_compat.loading",
    "set_stop_message": "cerebras_tf.cli.exit_codes",
    # Run configuration.
    "pause_training": "cerebras_tf.estimator.call",
    "accumulates_batches": "cerebras_tf.step.accumulation",
    "SPARSIFIER_MAP": "cerebras_tf.memoryx.sparsifier",
    "check_wafer_address": "cerebras_tf.config.address",
    "EXECUTION_MODE": "cerebras_tf.environment",
    "module_command": "cerebras_tf.run_module",
    "paused_collector": "cerebras_tf.collector",
    "precompile": "cerebras_tf.runtime.precompile",
    "check_loggers": "cerebras_tf.console.loggers",
    "require_usable": "cerebras_tf.memoryx.process_folder",
    # Checkpoints.
    "BundleWriter": "cerebras_tf.bundle.writer",
    "TensorFile": "cerebras_tf.memoryx.safetensors_file",
    "TensorType": "cerebras_tf.ir",
    "WEIGHT_TYPES": "cerebras_tf.memoryx.safetensors_file",
    "require_numbers": "cerebras_tf.memoryx.safetensors_file",
    "rounded_to": "cerebras_tf.memoryx.safetensors_file",
    "write_shards": "cerebras_tf.memoryx.safetensors_file",
    "CheckpointReader": "cerebras_tf.checkpoints.reader",
    "advice_on_damage": "cerebras_tf.bundle.index",
    "all_checkpoints": "cerebras_tf.bundle.index",
    "check_checkpoint_path": "cerebras_tf.bundle.paths",
    "checkpoint_before": "cerebras_tf.bundle.index",
    "data_path": "cerebras_tf.bundle.index",
    "data_paths": "cerebras_tf.bundle.index",
    "checkpoint_state": "cerebras_tf.checkpoints.reader",
    "find_cut_files": "cerebras_tf.bundle.index",
    "locked": "cerebras_tf.checkpoints.folder_lock",
    "named": "cerebras_tf.checkpoints.reader",
    "open_checkpoint": "cerebras_tf.checkpoints.reader",
    "read_variable": "cerebras_tf.checkpoints.reader",
    "remove_begun": "cerebras_tf.bundle.links",
    "remove_bundle": "cerebras_tf.bundle.links:remove_checkpoint",
    "saved_shapes": "cerebras_tf.checkpoints.reader",
    "warn_of_cut_files": "cerebras_tf.checkpoints.reader",
    "whole_folder": "cerebras_tf.memoryx.folder_lock",
    "writer_of": "cerebras_tf.memoryx.folder_lock",
    # Models of PyTorch.
    "LoraSettings": "cerebras_tf.torch_step.lora",
    "PretrainedModel": "cerebras_tf.torch_step.pretrained",
    "load_tensors": "cerebras_tf.torch_step.pretrained",
    "TorchFunction": "cerebras_tf.torch_step.function",
    "TorchModel": "cerebras_tf.torch_step.front_end",
    "TorchTraining": "cerebras_tf.torch_step.training",
    "TrainingSettings": "cerebras_tf.torch_step.settings",
    "fit": "cerebras_tf.torch.fit",
    "torch_checkpoints": "cerebras_tf.torch_step.checkpoint:checkpoints",
    # Predictions of a CS-2.
    "Prediction": "cerebras_tf.wafer.prediction",
    "load_system": "cerebras_tf.wafer.system",
    "measured_rows": "cerebras_tf.wafer.validation",
    "one_line": "cerebras_tf.wafer.prediction",
    "predict_pipelined": "cerebras_tf.wafer.pipelined",
    "predict_split": "cerebras_tf.wafer.pipelined",
    "predict_streaming": "cerebras_tf.wafer.streaming",
    "transformer": "cerebras_tf.wafer.transformer",
}
# Modules that are public as a whole: jobs of several wafers, and HTML pages.
_MODULES = {
    "job": "cerebras_tf.swarmx.job",
    "mpi": "cerebras_tf.swarmx.mpi",
    "page": "cerebras_tf.report.page",
    "pictures": "cerebras_tf.report.pictures",
}
__all__ = [*_PUBLIC, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _PUBLIC:
        raise AttributeError(f"module 'cerebras_tf.api' has no attribute {name!r}")
    path, _, attribute = _PUBLIC[name].partition(":")
    return getattr(importlib.import_module(path), attribute or name)
