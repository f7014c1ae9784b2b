"""Every environment variable that the package reads: name, meaning, default and parser."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Optional, TypeVar

from cerebras_tf.errors import ConfigError
from cerebras_tf.user_files import parse_json

T = TypeVar("T")


@dataclass(frozen=True)
class EnvironmentVariable(Generic[T]):
    """One environment variable. An empty value counts as unset.

    Attributes:
        parse: turns the text into the value; raises ValueError if the text is invalid.
        default: the value where the variable is unset.
        default_text: the default in words.
        expected: completes "must be ..." in the error message.
        fix: the last sentence of the error message.
    """

    name: str
    meaning: str
    parse: Callable[[str], T]
    default: T
    default_text: str
    expected: str = "valid"
    fix: str = "Unset it."

    @property
    def is_set(self) -> bool:
        """Whether the environment has the variable, even if it is empty."""
        return self.name in os.environ

    def get(self, environment: Mapping[str, str] = os.environ) -> T:
        """Returns the parsed value, or the default.

        Args:
            environment: where to read it.

        Raises:
            ConfigError: the text is invalid.
        """
        text = environment.get(self.name)
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise ConfigError(
                f"environment variable {self.name}: must be {self.expected}. "
                f"Received: {text!r}. {self.fix}"
            ) from None


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return parse


def _whole_number(least: int, most: Optional[int] = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            raise ValueError
        return int(text)

    return parse


def _text(
    name: str, meaning: str, default_text: str = "not set"
) -> EnvironmentVariable[Optional[str]]:
    """A variable whose text is the value; None if it is unset."""
    return EnvironmentVariable[Optional[str]](name, meaning, str, None, default_text)


def _cluster(text: str) -> dict[str, Any]:
    """TF_CONFIG; what tf.estimator requires of it."""
    try:
        found = parse_json(text, dict)
        cluster, task = found.get("cluster", {}), found.get("task", {})
        lists = [bool(hosts) and isinstance(hosts, list) for hosts in cluster.values()]
        hosts = [host for job in cluster.values() for host in job]
        valid = all(lists) and all(isinstance(host, str) for host in hosts)
        kind, index = task.get("type", "worker"), task.get("index", 0)
        valid &= type(index) is int and index >= 0
        if cluster:
            chiefs = [*cluster.get("chief", []), *cluster.get("master", [])]
            valid &= len(chiefs) == 1 and {"type", "index"} <= set(task)
            valid &= kind == "evaluator" or index < len(cluster[kind])
        else:
            valid &= (kind, index) == ("worker", 0)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError from error
    if not valid:
        raise ValueError
    return dict(found)


def _rank(name: str, meaning: str) -> EnvironmentVariable[Optional[int]]:
    """A rank that a launcher sets; None if it is unset."""
    parse, expected = _whole_number(0), "an integer, at least 0"
    return EnvironmentVariable[Optional[int]](name, meaning, parse, None, "not set", expected)


EXECUTION_MODES = ("weight_streaming", "pipeline")
MAX_THREADS = 1024  # more threads than cores do not help; tens of thousands cannot be started
SGEMM_CHOICES = BLAS, AVX512 = "blas", "avx512"
ISA_CHOICES = ("baseline", "avx2", "none", "avx512bf16", "amx")
_SET_BY_CSRUN = "Unset it; csrun_wse sets it."

EXECUTION_MODE = EnvironmentVariable(
    "CEREBRAS_EXECUTION_MODE",
    "How models run: weight_streaming reads each layer's weights before it runs, pipeline keeps "
    "all weights in memory. python-ws, python-pt and python set it.",
    _one_of(*EXECUTION_MODES),
    EXECUTION_MODES[0],
    EXECUTION_MODES[0],
    "weight_streaming or pipeline",
    "Unset it, or start the run with python-ws (weight streaming) or python (pipeline) under "
    "csrun_wse.",
)
THREADS = EnvironmentVariable[Optional[int]](
    "CEREBRAS_TF_THREADS",
    "Number of threads that run the kernels of a wafer. RunConfig's num_threads takes precedence.",
    _whole_number(1, MAX_THREADS),
    None,
    "one per core",
    f"a number of threads, 1 to {MAX_THREADS}",
    "Unset it to use every core.",
)
SGEMM = EnvironmentVariable[Optional[str]](
    "CEREBRAS_TF_SGEMM",
    "Kernels for large float32 matrix products: blas (OpenBLAS) or avx512 (kernels of this "
    "project).",
    _one_of(*SGEMM_CHOICES),
    None,
    "the faster of the two for the processor, as measured",
    f"{BLAS}, or {AVX512} where the processor has it",
    "Unset it to use the faster one.",
)
ISA = EnvironmentVariable[Optional[str]](
    "CEREBRAS_TF_ISA",
    "Instructions that kernels may use. For matrix products in bfloat16: amx, avx512bf16 or none. "
    "For all kernels: avx2 (as none, and no AVX-512), or baseline (only those that every processor "
    "of the architecture has); both are for tests.",
    _one_of(*ISA_CHOICES),
    None,
    "the fastest that the processor has",
    f"one of {', '.join(ISA_CHOICES)}",
    "Unset it to use the fastest.",
)
NUMBA_CACHE_DIR = _text(
    "NUMBA_CACHE_DIR", "Folder of the kernel cache.", "cerebras_tf in the user's cache folder"
)
XDG_CACHE_HOME = _text("XDG_CACHE_HOME", "The user's cache folder.", "~/.cache")
OPENBLAS_CORETYPE = _text(
    "OPENBLAS_CORETYPE",
    "Kernels that OpenBLAS uses.",
    "Zen on AMD's Zen 3 and Zen 4; OpenBLAS's own choice elsewhere",
)
WAFERS = EnvironmentVariable(
    "CEREBRAS_TF_WAFERS",
    "Number of wafers of the job, one process each. csrun_wse sets it.",
    _whole_number(1),
    1,
    "1",
    "an integer, at least 1",
    _SET_BY_CSRUN,
)
RANK = EnvironmentVariable(
    "CEREBRAS_TF_RANK",
    "Rank of this process in its job, from 0. csrun_wse sets it.",
    _whole_number(0),
    0,
    "0",
    "an integer, at least 0",
    _SET_BY_CSRUN,
)
JOB_FOLDER = _text(
    "CEREBRAS_TF_JOB", "Folder of the job's heartbeats and results. csrun_wse sets it."
)
CONSOLE = _text(
    "CEREBRAS_TF_CONSOLE",
    "Host name of the launcher and folder of its standard streams. csrun_wse sets it.",
)
PYTHONHASHSEED = _text(
    "PYTHONHASHSEED", "Seed of Python's string hashes. The same for all wafers of a job.", "0"
)
PMI_RANK = _rank("PMI_RANK", "Rank of the process, as mpiexec sets it.")
MPI_LOCALRANKID = _rank("MPI_LOCALRANKID", "Rank on this computer, as mpiexec sets it.")
SLURM_PROCID = _rank("SLURM_PROCID", "Rank of the process, as Slurm sets it.")
SLURM_LOCALID = _rank("SLURM_LOCALID", "Rank on this computer, as Slurm sets it.")
SLURM_GTIDS = _text("SLURM_GTIDS", "Ranks of the Slurm step's tasks on this computer.")
SLURM_CPUS_ON_NODE = EnvironmentVariable[Optional[int]](
    "SLURM_CPUS_ON_NODE",
    ("Number of cores that Slurm assigned to the job on this computer."),
    _whole_number(1),
    None,
    "all cores",
    "a number of cores",
)
SLURM_CPUS_PER_TASK = EnvironmentVariable[Optional[int]](
    "SLURM_CPUS_PER_TASK",
    "Number of cores per task requested from Slurm.",
    _whole_number(1),
    None,
    "not set",
    "a number of cores",
)
PROGRAM = _text(
    "CEREBRAS_TF_PROGRAM", "Name of the command in help and errors. The launchers set it."
)
NUM_CSX = EnvironmentVariable[Optional[int]](
    "CEREBRAS_TF_NUM_CSX",
    "Number of wafers instead of the params file's num_csx. csrun_wse sets it.",
    _whole_number(1),
    None,
    "not set",
    "an integer, at least 1",
    _SET_BY_CSRUN,
)
TF_CONFIG = EnvironmentVariable[dict[str, Any]](
    "TF_CONFIG",
    "TensorFlow's cluster configuration as JSON. With use_multiple_workers, each worker reads its "
    "own files.",
    _cluster,
    {},
    "one worker",
    "a JSON object with a cluster that has one chief, and with a task of this cluster",
)
FI_TCP_IFACE = _text(
    "FI_TCP_IFACE",
    "Network interface on which the ranks of a Slurm job listen.",
    "libfabric's choice",
)
SLURM_CONF = _text(
    "SLURM_CONF", "Slurm's configuration file. Slurm is not used if the file does not exist."
)

FOR_USERS: tuple[EnvironmentVariable[Any], ...] = (
    EXECUTION_MODE,
    THREADS,
    SGEMM,
    ISA,
    NUMBA_CACHE_DIR,
    XDG_CACHE_HOME,
    OPENBLAS_CORETYPE,
    TF_CONFIG,
    SLURM_CONF,
    FI_TCP_IFACE,
)
SET_BY_LAUNCHERS: tuple[EnvironmentVariable[Any], ...] = (
    PROGRAM,
    NUM_CSX,
    WAFERS,
    RANK,
    JOB_FOLDER,
    CONSOLE,
    PYTHONHASHSEED,
    PMI_RANK,
    MPI_LOCALRANKID,
    SLURM_PROCID,
    SLURM_LOCALID,
    SLURM_GTIDS,
    SLURM_CPUS_ON_NODE,
    SLURM_CPUS_PER_TASK,
)
VARIABLES = FOR_USERS + SET_BY_LAUNCHERS


def user_cache_folder() -> str:
    """Returns the user's cache folder, also where HOME is empty or not set.

    Raises:
        ConfigError: XDG_CACHE_HOME or HOME is a relative path.
    """
    home = os.environ.get("HOME")
    if not home:
        with contextlib.suppress(KeyError):  # a user without an entry, as in a container
            home = pwd.getpwuid(os.getuid()).pw_dir
    name, found = "XDG_CACHE_HOME", XDG_CACHE_HOME.get()
    if not found:
        name, found = "HOME", os.path.join(home or "/", ".cache")
    if not os.path.isabs(found):
        raise ConfigError(
            f"environment variable {name}: must be an absolute path. "
            f"Received: {os.environ[name]!r}. Correct it."
        )
    return found
