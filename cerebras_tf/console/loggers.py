"""Logs of scalars besides TensorBoard's event files: `metrics.csv`, and Weights & Biases."""

from __future__ import annotations

import csv
import importlib
import io
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Protocol

from cerebras_tf.errors import ConfigError
from cerebras_tf.installing import pip_install
from cerebras_tf.whole_file import write_whole

CSV, WANDB = "csv", "wandb"  # of the option `loggers`
METRICS = "metrics.csv"
_RUN_ID = "wandb_run_id"
_STEP, _GLOBAL_STEP = "step", "global_step"


class Logger(Protocol):
    """Receives the scalars that are written to an event file."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Logs scalars by tag. The scalars of a step may come in several calls."""

    def restart(self, step: int) -> None:
        """Training continues with this step: what later steps logged is of a lost session."""

    def close(self) -> None:
        """Writes what is left."""


class MetricsFile:
    """A CSV file with a row for each step, and a column for each tag."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns = [_STEP]
        self._last = -1  # step of the last row in the file
        self._step: Optional[int] = None  # of a row that is not in the file yet
        self._row: dict[str, float] = {}
        rows = self._read()
        if rows:
            self._columns = list(rows[0])
            self._last = max(int(row[_STEP]) for row in rows)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See Logger."""
        if step != self._step:
            self.close()
            self._step = step
        self._row.update(values)

    def restart(self, step: int) -> None:
        """See Logger."""
        self.close()
        if step <= self._last:
            self._write([row for row in self._read() if int(row[_STEP]) < step])

    def close(self) -> None:
        """Writes the row of the last step."""
        step, row = self._step, {tag: f"{value:.9g}" for tag, value in self._row.items()}
        self._step, self._row = None, {}
        if step is None or not row:
            return
        new = [tag for tag in row if tag not in self._columns]
        if new or step <= self._last or not self._path.exists():
            self._columns += new
            kept = [each for each in self._read() if int(each[_STEP]) != step]
            self._write(sorted([*kept, {_STEP: str(step), **row}], key=lambda r: int(r[_STEP])))
        else:
            with open(self._path, "a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self._columns, lineterminator="\n").writerow(
                    {_STEP: step, **row}
                )
        self._last = max(step, self._last)

    def _read(self) -> list[dict[str, str]]:
        try:
            with open(self._path, newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            if any(None in row or not (row.get(_STEP) or "").isdecimal() for row in rows):
                raise ValueError("another file")
        except FileNotFoundError:
            return []
        except (OSError, ValueError, csv.Error) as error:
            raise ConfigError(
                f"loggers: {self._path} must be a table with a column `{_STEP}` of numbers. "
                f"Received: {error}. Move it away."
            ) from error
        return rows

    def _write(self, rows: Sequence[Mapping[str, str]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_whole(self._path, text.getvalue())
        self._last = max((int(row[_STEP]) for row in rows), default=-1)


class WandbRun:
    """A run of Weights & Biases for a model folder, which later calls resume.

    Args:
        prefix: `train` or `eval`, for tags without one of them.
        config: parameters that the run shows.
    """

    def __init__(self, model_dir: str, prefix: str, config: Mapping[str, Any]) -> None:
        wandb = require_wandb()
        self._prefix = prefix
        self._is_own = wandb.run is None  # an evaluation during training logs to its run
        if self._is_own:
            path = Path(model_dir, _RUN_ID)
            if not path.exists():
                os.makedirs(model_dir, exist_ok=True)
                write_whole(path, secrets.token_hex(4))
            wandb.init(
                id=path.read_text(encoding="utf-8").strip(),
                # Without a connection, wandb logs a warning that it does not resume.
                resume=None if os.environ.get("WANDB_MODE") == "offline" else "allow",
                name=os.path.basename(os.path.abspath(model_dir)),
                dir=model_dir,
                config=dict(config),
            )
            wandb.define_metric("*", step_metric=_GLOBAL_STEP)
        self._run = wandb.run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See Logger."""
        tags = {
            tag if tag.startswith(("train/", "eval/")) else f"{self._prefix}/{tag}": value
            for tag, value in values.items()
        }
        self._run.log({**tags, _GLOBAL_STEP: step})

    def restart(self, step: int) -> None:
        """See Logger. A run keeps what was logged."""

    def close(self) -> None:
        """Ends the run, if this logger started it."""
        if self._is_own:
            self._run.finish()


def require_wandb() -> Any:
    """Returns the package wandb.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        found: Any = importlib.import_module("wandb")
        found.init  # a folder of this name is no package  # noqa: B018
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"loggers: wandb requires the package wandb. Received: {error}. Run "
            f"`{pip_install('wandb')}`, or remove it."
        ) from None
    return found


def check_loggers(names: Sequence[str], folders: Sequence[str]) -> None:
    """Raises what `scalar_loggers` would raise, and writes nothing.

    Args:
        folders: of the CSV files.

    Raises:
        ConfigError: a package is not installed, or a file is no log.
    """
    for folder in folders if CSV in names else ():
        MetricsFile(Path(folder, METRICS))
    if WANDB in names:
        require_wandb()


def scalar_loggers(
    names: Sequence[str], model_dir: str, folder: str, prefix: str, config: Mapping[str, Any]
) -> list[Logger]:
    """The loggers of the option `loggers` besides event files.

    Args:
        folder: of the CSV file, model_dir or a folder in it.
        prefix: see WandbRun.
        config: parameters of the model.
    """
    found: list[Logger] = []
    if CSV in names:
        found.append(MetricsFile(Path(folder, METRICS)))
    if WANDB in names:
        found.append(WandbRun(model_dir, prefix, config))
    return found
