"""The backend of torch.compile: its options, and what runs graphs that cannot be captured."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import torch

from cerebras_tf.capture_torch import internals
from cerebras_tf.errors import CapacityError, CerebrasError, ConfigError, UnsupportedOpError
from cerebras_tf.suggestions import did_you_mean
from cerebras_tf.torch_compile.function import GraphFunction
from cerebras_tf.torch_compile.graph import CapturedGraph

NAME = "cerebras"
OPTIONS = {"fallback": True}
# Python floats among the arguments are part of a graph. With more values of them it runs eagerly.
_MAX_VALUES = 8


def compile_graph(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Optional[Mapping[str, Any]] = None,
    mode: Optional[str] = None,
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo: ``torch.compile(model, backend="cerebras")``.

    Args:
        module: the graph.
        example_inputs: its arguments.
        options: ``fallback``: whether a graph that cannot be captured runs eagerly, with a
            warning. Otherwise it is refused. The default is True.
        mode: must be None or "default".

    Raises:
        ConfigError: an option is unknown.
        UnsupportedOpError: the graph cannot be captured, and ``fallback`` is False.

    Example:
        model = torch.compile(model, backend="cerebras")
        for x, y in loader:
            loss = loss_function(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    return _Variants(module, _fallback(options, mode), example_inputs)


def register() -> None:
    """Makes the backend known to torch.compile."""
    if NAME not in torch.compiler.list_backends():
        internals.register_backend(compile_graph, name=NAME)


def _fallback(options: Optional[Mapping[str, Any]], mode: Optional[str]) -> bool:
    """The option `fallback`; raises ConfigError for others."""
    if mode not in (None, "default"):
        raise ConfigError(f"torch.compile: mode must be None. Received: {mode!r}.")
    given = {**OPTIONS, **(options or {})}
    for name in given:
        if name not in OPTIONS:
            raise ConfigError(
                f"torch.compile: options of the backend {NAME} must be among "
                f"{', '.join(OPTIONS)}. Received: {name}. {did_you_mean(name, OPTIONS)}".rstrip()
            )
    if not isinstance(given["fallback"], bool):
        raise ConfigError(
            f"torch.compile: option fallback must be True or False. Received: {given['fallback']}."
        )
    return bool(given["fallback"])


class _Variants:
    """A graph of Dynamo, captured for each value of the Python floats among its arguments."""

    def __init__(
        self, module: torch.fx.GraphModule, fallback: bool, example_inputs: Sequence[Any]
    ) -> None:
        self._module, self._fallback = module, fallback
        self._floats = internals.python_floats(module)
        # None for a graph that runs eagerly.
        self._functions: dict[tuple[float, ...], Optional[GraphFunction]] = {}
        self._find(example_inputs)

    def __call__(self, *args: Any) -> Any:
        function = self._find(args)
        if function is not None:
            try:
                function.prepare(args)
            except CapacityError:
                raise
            except CerebrasError as error:
                self._refuse(error)
                function = self._functions[self._values(args)] = None
        return self._module(*args) if function is None else function(*args)

    def _values(self, args: Sequence[Any]) -> tuple[float, ...]:
        return tuple(float(args[at]) for at in self._floats)

    def _find(self, args: Sequence[Any]) -> Optional[GraphFunction]:
        """The captured graph for these arguments; None if it runs eagerly."""
        values = self._values(args)
        if values not in self._functions:
            try:
                if len(self._functions) >= _MAX_VALUES:
                    raise UnsupportedOpError(
                        f"graph: Python floats may have {_MAX_VALUES} values. "
                        f"Received: {values}. Pass them as tensors."
                    )
                module = internals.with_floats(self._module, dict(zip(self._floats, values)))
                self._functions[values] = GraphFunction(CapturedGraph(module))
            except CerebrasError as error:
                self._refuse(error)
                self._functions[values] = None
        return self._functions[values]

    def _refuse(self, error: CerebrasError) -> None:
        """Raises an error, or logs a warning that the graph runs eagerly."""
        if not self._fallback:
            raise error
        warnings.warn(
            f"torch.compile, backend {NAME}: a graph runs eagerly. {error} To raise an error "
            'instead, pass options={"fallback": False}.',
            stacklevel=2,
        )
