"""Machine operations that Numba has no name for: bit casts, rounding, typed loads and stores.

Each is one LLVM instruction (or two), so that loops over them vectorise. Memory is named by
address, which makes one compiled kernel serve every layout. It deliberately checks no bounds.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

FLOATS = {"float32": types.float32, "float64": types.float64}


@intrinsic
def bits_of(typingctx: Any, x: Any) -> Any:
    """The int32 with the bits of a float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def float_of(typingctx: Any, x: Any) -> Any:
    """The float32 with the bits of an int32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def bits_of_double(typingctx: Any, x: Any) -> Any:
    """The int64 with the bits of a float64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), generate


@intrinsic
def double_of(typingctx: Any, x: Any) -> Any:
    """The float64 with the bits of an int64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), generate


def _llvm(name: str, operands: int) -> Any:
    """An LLVM intrinsic on floats of one type."""

    def typed(*kinds: Any) -> Any:
        if kinds[0] not in (types.float32, types.float64) or any(k != kinds[0] for k in kinds):
            return None

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            function = builder.module.declare_intrinsic(f"llvm.{name}", [args[0].type] * 1)
            return builder.call(function, args)

        return kinds[0](*kinds), generate

    if operands == 1:
        return intrinsic(lambda typingctx, x: typed(x))
    return intrinsic(lambda typingctx, x, y, z: typed(x, y, z))


floor = _llvm("floor", 1)
ceil = _llvm("ceil", 1)
rint = _llvm("rint", 1)
sqrt = _llvm("sqrt", 1)
fabs = _llvm("fabs", 1)


@intrinsic
def fused_multiply_add(typingctx: Any, x: Any, y: Any, z: Any) -> Any:
    """x y + z in float64, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float64(types.float64, types.float64, types.float64), generate


def _element(dtype: str) -> ir.Type:
    if dtype == "float16":
        return ir.HalfType()
    if dtype in ("float32", "float64"):
        return ir.FloatType() if dtype == "float32" else ir.DoubleType()
    return ir.IntType(8 if dtype == "bool" else 8 * types_by_name(dtype).bitwidth // 8)


def types_by_name(dtype: str) -> Any:
    """Numba's scalar type that holds an element in a register; float16 is held as float32."""
    if dtype == "float16":
        return types.float32
    return types.boolean if dtype == "bool" else getattr(types, dtype)


def _pointer(builder: Any, address: Any, index: Any, element: ir.Type) -> Any:
    base = builder.inttoptr(address, element.as_pointer())
    return builder.gep(base, [index])


def _scopes(builder: Any, count: int) -> list[Any]:
    """Metadata of `count` regions of memory that do not overlap."""
    module = builder.module
    domain = module.add_metadata(["cerebras_tf elementwise"])
    return [module.add_metadata([f"cerebras_tf region {i}", domain]) for i in range(count)]


def _mark(builder: Any, instruction: Any, region: int, regions: int) -> None:
    """Says that an access touches one of `regions` regions only: written ones never overlap.

    Region -1 is memory that is only read; it may overlap itself but nothing that is written.
    """
    scopes = _scopes(builder, regions)
    others = [scope for i, scope in enumerate(scopes) if i != region]
    if region >= 0:
        instruction.set_metadata("alias.scope", builder.module.add_metadata([scopes[region]]))
    if others:
        instruction.set_metadata("noalias", builder.module.add_metadata(others))


@intrinsic
def load(typingctx: Any, dtype: Any, region: Any, regions: Any, address: Any, index: Any) -> Any:
    """load(dtype, region, regions, address, index): element `index` of an array at `address`."""
    name, here, count = dtype.literal_value, region.literal_value, regions.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = _element(name)
        value = builder.load(_pointer(builder, args[3], args[4], element))
        _mark(builder, value, here, count)
        if name == "float16":
            return builder.fpext(value, ir.FloatType())
        if name == "bool":
            return builder.icmp_unsigned("!=", value, ir.Constant(element, 0))
        return value

    return types_by_name(name)(dtype, region, regions, types.int64, types.int64), generate


@intrinsic
def store(
    typingctx: Any, dtype: Any, region: Any, regions: Any, address: Any, index: Any, value: Any
) -> Any:
    """store(dtype, region, regions, address, index, value): the inverse of load."""
    name, here, count = dtype.literal_value, region.literal_value, regions.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = _element(name)
        value = args[5]
        if name == "float16":
            value = builder.fptrunc(value, element)
        elif name == "bool":
            value = builder.zext(value, element)
        written = builder.store(value, _pointer(builder, args[3], args[4], element))
        _mark(builder, written, here, count)
        return context.get_dummy_value()

    kinds = (dtype, region, regions, types.int64, types.int64, types_by_name(name))
    return types.void(*kinds), generate
