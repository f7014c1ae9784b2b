"""Runs compiled programs in tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Union

import numpy as np

from cerebras_tf.ir import StepGraph, Variable
from cerebras_tf.ir.program import Program
from cerebras_tf.memoryx.store import MemoryStore, Store, reading, write
from cerebras_tf.runtime.client import ProgramSource, SavedProgram, SessionClient
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.executor import Executor
from cerebras_tf.runtime.session import Session
from tests.steps import Arrays


def run_program(
    program: Program, step: StepGraph, variables: Arrays, steps: Sequence[Arrays]
) -> tuple[Arrays, Arrays]:
    """Results of the last step and variables after it."""
    store = store_of(step.specs.values(), variables)
    executor = Executor(program, store, CpuBackend())
    executor.arena[:] = 0xFF  # what is read before it is written is NaN
    results: Arrays = {}
    for features in steps:
        results = executor.run(features)
    return results, contents(store)


def client_of(source: Union[ProgramSource, Program], store: Store, backend=None, **given):
    """The client of a session in this process, for a source of programs or for one program."""
    session = Session(store, backend or CpuBackend(), **given)
    return SessionClient(session, SavedProgram(source) if isinstance(source, Program) else source)


def store_of(specs: Iterable[Variable], values: Arrays) -> MemoryStore:
    """A store with values for its variables."""
    store = MemoryStore(specs)
    for name, content in values.items():
        write(store, name, content)
    return store


def contents(store: Store) -> Arrays:
    """Copies of all variables."""
    return {name: content_of(store, name) for name in store.specs}


def variables_of(client: SessionClient) -> Arrays:
    """Copies of all variables of a session."""
    return {name: client.session.get(name) for name in client.session.specs}


def content_of(store: Store, name: str) -> np.ndarray:
    """A copy of one variable."""
    with reading(store, name) as array:
        return np.array(array)
