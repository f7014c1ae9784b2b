"""A prediction as numbers: the record that a report contains for comparisons."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from cerebras_tf.errors import ConfigError
from cerebras_tf.report.pictures import CAUSES
from cerebras_tf.suggestions import did_you_mean_path
from cerebras_tf.user_files import parse_json, read_bytes, reason
from cerebras_tf.wafer.prediction import Prediction

REPORT = "report.html"
_MARK = '<script type="application/json" id="prediction">'
Record = dict[str, Any]
_MAX_FIGURE = 1e30
_TYPES = {
    **dict.fromkeys(("name", "machine", "release", "mode", "bound"), str),
    **dict.fromkeys(("num_csx", "replicas", "parameters", "layers", "global_batch"), int),
    **dict.fromkeys(("step_s", "steps_per_s", "samples_per_s", "tokens_per_s"), float),
    **dict.fromkeys(("pflop_a_step", "utilisation", "kept_gb", "spilled_gb"), float),
    **dict.fromkeys(("fits", "recomputes"), bool),
    "micro_batches?": int,
    "tokens_a_step": int,
    "energy_kj_at_most": float,
    "seconds_by_cause": dict.fromkeys(CAUSES, float),
}


def record_of(found: Prediction) -> Record:
    """The figures of a prediction by name, in seconds, bytes and plain numbers."""
    workload, passes = found.workload, found.micro_batches
    return {
        "name": workload.name,
        "machine": found.system.name,
        "release": found.release.name,
        "mode": found.mode,
        "num_csx": found.num_csx,
        "replicas": found.replicas,
        "parameters": workload.parameters,
        "layers": len(workload.layers),
        "global_batch": found.global_batch,
        "micro_batches": passes,
        "tokens_a_step": found.tokens,
        "pflop_a_step": found.flops * found.num_csx / 1e15,
        "step_s": found.step_s,
        "steps_per_s": found.steps_per_s,
        "samples_per_s": found.samples_per_s,
        "tokens_per_s": found.tokens / found.step_s,
        "utilisation": found.utilisation,
        "bound": found.bound,
        "fits": not found.faults,
        "kept_gb": found.activations.kept_bytes / 1e9,
        "spilled_gb": found.activations.spilled_bytes / 1e9,
        "recomputes": found.activations.recomputes,
        "energy_kj_at_most": found.joules / 1e3,
        "seconds_by_cause": {
            cause: passes * cycles / found.system["clock"]
            for cause, cycles in found.cycles.as_dict().items()
        },
        "host_s": passes * found.host_s,
    }


def embedded(record: Record) -> str:
    """The record as an element of a page."""
    text = json.dumps(record).replace("<", "\\u003c")  # no text ends the element
    return f"{_MARK}{text}</script>"


def read_record(path: str) -> Record:
    """The record in a report.

    Args:
        path: a report, its folder, or the parent of a folder `compiled` with one.

    Raises:
        ConfigError: there is no report.
    """
    place = Path(path)
    tried = [place, place / REPORT, place / "compiled" / REPORT]
    file = next((item for item in tried if item.is_file()), None)
    text = read_bytes(file).decode(errors="replace") if file is not None else ""
    found = re.search(re.escape(_MARK) + r"(.*?)</script>", text, flags=re.DOTALL)
    if found is None:
        raise ConfigError(
            f"compare: must be a {REPORT}, or a folder that contains one. Received: {path}. "
            f"{did_you_mean_path(place) or 'Write one with --compile_only.'}"
        )
    try:
        record: Record = parse_json(found.group(1), _TYPES)
        _require_finite(record)
    except ValueError as error:
        raise ConfigError(
            f"compare: {path} must be a report as it was written. Received: {reason(error)}. "
            "Write it again."
        ) from error
    return {"micro_batches": 1, **record}  # older reports have no micro-batches


def _require_finite(record: Record) -> None:
    for name, value in {**record, **record["seconds_by_cause"]}.items():
        if isinstance(value, (int, float)) and not abs(value) < _MAX_FIGURE:
            raise ValueError(f"{name} is {value:g}" if value != value else f"{name} is too large")
