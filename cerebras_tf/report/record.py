"""A prediction as numbers: the record that a report contains for comparisons."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from cerebras_tf.errors import ConfigError
from cerebras_tf.suggestions import did_you_mean_path
from cerebras_tf.wafer.prediction import Prediction

REPORT = "report.html"
_MARK = '<script type="application/json" id="prediction">'
Record = dict[str, Any]


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
    return f"{_MARK}{json.dumps(record).replace('<', '')}</script>"


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
    text = file.read_text(encoding="utf-8", errors="replace") if file is not None else ""
    found = re.search(re.escape(_MARK) + r"(.*?)</script>", text, flags=re.DOTALL)
    if found is None:
        raise ConfigError(
            f"compare: must be a {REPORT}, or a folder that contains one. Received: {path}. "
            f"{did_you_mean_path(place) or 'Write one with --compile_only.'}"
        )
    # Older reports have no micro-batches.
    record: Record = {"micro_batches": 1, **json.loads(found.group(1))}
    return record
