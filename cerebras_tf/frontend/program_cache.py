"""A cache of compiled programs in a folder, with a hash of their inputs as key.

The hash covers the model, the types of the features, the compiler's options and the compiler's own
code. Seeds that are drawn for each run are not part of the key: a program from the cache gets new
seeds.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Optional

import numpy as np

from cerebras_tf.compiler.pipeline import Options
from cerebras_tf.errors import GraphError
from cerebras_tf.ir import TensorType
from cerebras_tf.ir.program import Program
from cerebras_tf.ir.program_file import load_origin, save_program
from cerebras_tf.memoryx.store import Store
from cerebras_tf.ops import lookup
from cerebras_tf.runtime.verify_program import load_verified
from cerebras_tf.user_files import check_types, reason
from cerebras_tf.whole_file import remove_partial, write_whole

# Packages whose code decides what a program is.
_COMPILER = ("compiler", "ir", "kernels", "ops", "passes")
_DIGITS = 12
_ORIGIN_TYPES = {
    "key": str,
    "results": [str],
    "seed": int,
    "fitted": bool,
    "needed_bytes": int,
    "planned_bytes": int,
}


@dataclass(frozen=True)
class Origin:
    """How a program was compiled; stored in its file.

    Attributes:
        key: hash of everything that the program depends on.
        results: names of the values that it returns.
        seed: seed of random operations without one of their own.
        fitted: whether activations were fitted into this computer's memory.
        needed_bytes: activations and scratch memory without that.
        planned_bytes: activations and scratch memory with it.
    """

    key: str
    results: tuple[str, ...]
    seed: int
    fitted: bool
    needed_bytes: int
    planned_bytes: int

    def serves(self, available: Optional[int]) -> bool:
        """Whether the program is the one that would be compiled now.

        Args:
            available: bytes that activations may take; None if nothing is fitted.
        """
        if not self.fitted:
            return available is None or self.needed_bytes <= available
        return available is not None and self.planned_bytes <= available < self.needed_bytes


@dataclass(frozen=True)
class CacheKey:
    """The key of a step's programs.

    Attributes:
        texts: options, types and names.
        digest: hash of the model for results of these names; see FrontEnd.digest.
    """

    texts: tuple[str, ...]
    digest: Callable[[Iterable[str]], Optional[str]]

    def of(self, results: Iterable[str]) -> Optional[str]:
        """The hash for these results; None if the model has no hash for them."""
        names = sorted(results)
        model = self.digest(names)
        if model is None:
            return None
        found = hashlib.blake2b(digest_size=16)
        for text in (*names, *self.texts, code_digest(*_COMPILER), model):
            found.update(f"{text}\n".encode())
        return found.hexdigest()


def settings_of(
    options: Options, store: Store, types: Mapping[str, TensorType], fallback: bool, updates: bool
) -> tuple[str, ...]:
    """The texts of a CacheKey: settings that a program depends on.

    Args:
        store: the variables; their storage types may differ from the graph's.
        fallback: whether the framework's own backward graph is used.
        updates: whether a step updates variables.
    """
    return (
        f"streaming={options.streaming} precision={options.precision} fuse={options.fuse}",
        f"keep_float32={options.keep_float32} attention={options.attention}",
        f"strip={options.strip} restore={options.restore} wafers={options.wafers}",
        f"staging={options.staging} fallback={fallback} updates={updates}",
        f"sparse={options.sparse}",
        *(str(spec) for _, spec in sorted(store.specs.items())),
        *(f"{name} {type}" for name, type in types.items()),
    )


@functools.lru_cache(maxsize=8)
def code_digest(*packages: str) -> str:
    """Hash of the source of packages of cerebras_tf, of NumPy's version and the core count."""
    found = hashlib.blake2b(digest_size=16)
    root = Path(__file__).parents[1]
    for package in packages:
        for path in sorted((root / package).glob("*.py")):
            found.update(path.read_bytes())
    found.update(f"{np.__version__} {os.cpu_count()}".encode())
    return found.hexdigest()


class ProgramCache:
    """The compiled programs in a folder.

    Args:
        mode: train, eval or predict; file names are `program_<mode>_<hash>.zip`.
        warn: logs a warning about a file that cannot be read.
    """

    def __init__(self, folder: str, mode: str, warn: Callable[[str], None]) -> None:
        self._folder = Path(folder)
        self._prefix = f"program_{mode}_"
        self._warn = warn

    def find(
        self, key: CacheKey, wanted: Iterable[str], available: Optional[int], seed: int
    ) -> Optional[tuple[Program, bool]]:
        """Looks for the program that would be compiled now.

        Args:
            wanted: names of values that it must return.
            available: bytes that activations may take; None if nothing is fitted.
            seed: seed of random operations without one of their own, for this run.

        Returns:
            The program, and whether it was fitted into this computer's memory; None if there is
            no such program.
        """
        keys: dict[tuple[str, ...], Optional[str]] = {}
        for path in sorted(self._folder.glob(f"{self._prefix}*.zip")):
            origin = self._origin_of(path)
            if origin is None or not origin.serves(available) or set(wanted) - set(origin.results):
                continue
            if origin.results not in keys:
                keys[origin.results] = key.of(origin.results)
            if keys[origin.results] != origin.key:
                continue
            try:
                program = load_verified(path)
            except (GraphError, OSError) as error:
                self._warn(f"{error}; compiling again")
                continue
            program.replace_seed(origin.seed, seed, lambda item: lookup(item.op).draws(item.attrs))
            return program, origin.fitted
        return None

    def _origin_of(self, path: Path) -> Optional[Origin]:
        try:
            found = load_origin(path)
            check_types(found, _ORIGIN_TYPES)
            if found.keys() != _ORIGIN_TYPES.keys():
                raise ValueError(f"other keys, {', '.join(found)}")
            return Origin(**{**found, "results": tuple(found["results"])})
        except (OSError, ValueError) as error:
            self._warn(
                f"{path}: must be a complete saved program. Received: {reason(error)}; compiling "
                "again"
            )
            return None

    def save(
        self, program: Program, text: str, key: CacheKey, seed: int, needed_bytes: int
    ) -> Path:
        """Writes a program, its text and its origin; returns the program's file.

        Args:
            text: the step that it was made from, printed.
            seed: seed of random operations without one of their own.
            needed_bytes: activations and scratch memory before they were fitted into memory.
        """
        results = tuple(sorted(program.results))
        found = key.of(results)
        assert found is not None, "the results of a program are values of its model"
        planned = program.arena_bytes + program.scratch_bytes
        origin = Origin(found, results, seed, planned < needed_bytes, needed_bytes, planned)
        self._folder.mkdir(parents=True, exist_ok=True)
        stem = self._folder / f"{self._prefix}{found[:_DIGITS]}"
        remove_partial(self._folder)
        write_whole(stem.with_suffix(".txt"), text + "\n", sync=False)
        save_program(program, stem.with_suffix(".zip"), asdict(origin))
        return stem.with_suffix(".zip")
