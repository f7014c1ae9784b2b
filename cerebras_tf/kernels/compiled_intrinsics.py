"""LLVM instructions that Numba has no name for: bit casts, rounding, loads and stores, prefetch.

Each is one or two LLVM instructions, so that loops over them vectorise. Memory is given by address,
so one compiled kernel serves every layout. Bounds are not checked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_FLOATS = (types.float32, types.float64)
_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()
_HALF_BITS = _I32(16)


def emits(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: a Numba intrinsic from a function that emits LLVM IR.

    Args:
        result: Numba type of the result; types.void for none.
        arguments: Numba types of the arguments. Integers are converted to them; floats of another
            type do not compile, because conversions would hide that the kernel is wrong for them.

    Example:
        @emits(types.int32, types.float32)
        def bits_of(builder, x):
            return builder.bitcast(x, ir.IntType(32))
    """
    names = ["context", *(f"argument{i}" for i in range(len(arguments)))]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD

    def decorate(emit: Callable[..., Any]) -> Any:
        def typed(_, *given):
            if any(type != found for type, found in zip(arguments, given) if found in _FLOATS):
                return None

            def generate(context, builder, signature, values):
                emitted = emit(builder, *values)
                return context.get_dummy_value() if emitted is None else emitted

            return result(*arguments), generate

        typed.__name__, typed.__doc__ = emit.__name__, emit.__doc__
        # Numba reads the number of arguments here.
        signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
        typed.__signature__ = signature  # type: ignore[attr-defined]
        return intrinsic(typed)

    return decorate


@emits(types.int32, types.float32)
def bits_of(builder, x):
    """The int32 with the bits of a float32."""
    return builder.bitcast(x, _I32)


@emits(types.float32, types.int32)
def float_of(builder, x):
    """The float32 with the bits of an int32."""
    return builder.bitcast(x, _FLOAT)


@emits(types.int64, types.float64)
def bits_of_double(builder, x):
    """The int64 with the bits of a float64."""
    return builder.bitcast(x, _I64)


@emits(types.float64, types.int64)
def double_of(builder, x):
    """The float64 with the bits of an int64."""
    return builder.bitcast(x, _DOUBLE)


def _unary_intrinsic(name: str) -> Any:
    """LLVM's intrinsic of one float32 or float64."""

    def typed(typingctx, x):
        if x not in (types.float32, types.float64):
            return None

        def generate(context, builder, signature, args):
            function = builder.module.declare_intrinsic(f"llvm.{name}", [args[0].type])
            return builder.call(function, args)

        return x(x), generate

    return intrinsic(typed)


floor, ceil, rint, sqrt, fabs = map(_unary_intrinsic, ("floor", "ceil", "rint", "sqrt", "fabs"))


@emits(types.float64, types.float64, types.float64, types.float64)
def fused_multiply_add(builder, x, y, z):
    """x y + z in float64, rounded once."""
    return builder.fma(x, y, z)


@emits(types.float32, types.float32)
def round_to_float16(builder, x):
    """A float32 rounded to float16 and back."""
    return builder.fpext(builder.fptrunc(x, ir.HalfType()), _FLOAT)


def emit_prefetch(builder: Any, pointer: Any, write: int, locality: int) -> None:
    """Emits LLVM's prefetch of the cache line at a pointer; locality 3 is L1, 2 is L2."""
    kinds = [_I8.as_pointer(), _I32, _I32, _I32]
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0"
    )
    builder.call(function, [pointer, _I32(write), _I32(locality), _I32(1)])


def prefetch(write: int, locality: int) -> Any:
    """An intrinsic (address) that prefetches the cache line there; see `emit_prefetch`."""

    @emits(types.void, types.int64)
    def fetch(builder, address):
        emit_prefetch(builder, builder.inttoptr(address, _I8.as_pointer()), write, locality)

    return fetch


def _element(dtype: str) -> ir.Type:
    if dtype == "float16":
        return ir.HalfType()
    if dtype in ("float32", "float64"):
        return _FLOAT if dtype == "float32" else _DOUBLE
    if dtype == "bfloat16":
        return ir.IntType(16)
    return ir.IntType(8 if dtype == "bool" else register_type(dtype).bitwidth)


def register_type(dtype: str) -> Any:
    """Numba's type of an element in a register; half precision is held as float32."""
    if dtype in ("float16", "bfloat16"):
        return types.float32
    return types.boolean if dtype == "bool" else getattr(types, dtype)


def _element_pointer(builder, address, index, element):
    return builder.gep(builder.inttoptr(address, element.as_pointer()), [index])


def _add_alias_metadata(builder: Any, instruction: Any, region: int, regions: int) -> None:
    """Marks which array an access touches, so that LLVM vectorises without overlap checks."""
    module = builder.module
    domain = module.add_metadata(["cerebras_tf elementwise"])
    scopes = [module.add_metadata([f"cerebras_tf written {i}", domain]) for i in range(regions)]
    others = [scope for i, scope in enumerate(scopes) if i != region]
    if region >= 0:
        instruction.set_metadata("alias.scope", module.add_metadata([scopes[region]]))
    if others:
        instruction.set_metadata("noalias", module.add_metadata(others))


def loader(dtype: str, region: int, regions: int) -> Any:
    """An intrinsic (address, index) -> element `index` of the array at an address.

    Args:
        region: which of the written arrays it is; -1: an array that is only read.
        regions: number of written arrays. They overlap neither each other nor arrays only read.
    """

    @emits(register_type(dtype), types.int64, types.int64)
    def load(builder, address, index):
        element = _element(dtype)
        value = builder.load(_element_pointer(builder, address, index, element))
        _add_alias_metadata(builder, value, region, regions)
        if dtype == "float16":
            return builder.fpext(value, _FLOAT)
        if dtype == "bfloat16":
            upper = builder.shl(builder.zext(value, _I32), _HALF_BITS)
            return builder.bitcast(upper, _FLOAT)
        if dtype == "bool":
            return builder.icmp_unsigned("!=", value, ir.Constant(element, 0))
        return value

    return load


def storer(dtype: str, region: int, regions: int) -> Any:
    """An intrinsic (address, index, value) that writes one element; arguments as for `loader`.

    A bfloat16 is written as the upper half of the float32, which must already be rounded.
    """

    @emits(types.void, types.int64, types.int64, register_type(dtype))
    def store(builder, address, index, value):
        element = _element(dtype)
        if dtype == "float16":
            value = builder.fptrunc(value, element)
        elif dtype == "bfloat16":
            bits = builder.bitcast(value, _I32)
            value = builder.trunc(builder.lshr(bits, _HALF_BITS), element)
        elif dtype == "bool":
            value = builder.zext(value, element)
        written = builder.store(value, _element_pointer(builder, address, index, element))
        _add_alias_metadata(builder, written, region, regions)

    return store
