"""Machine operations that Numba has no name for: bit casts, rounding, typed loads and stores.

Each is one LLVM instruction (or two), so that loops over them vectorise. Memory is named by
address, which makes one compiled kernel serve every layout. No bounds are checked: callers pass
addresses within their own arrays.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

_HALF_BITS = ir.Constant(ir.IntType(32), 16)


@intrinsic
def bits_of(typingctx, x):
    """The int32 with the bits of a float32."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def float_of(typingctx, x):
    """The float32 with the bits of an int32."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def bits_of_double(typingctx, x):
    """The int64 with the bits of a float64."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), generate


@intrinsic
def double_of(typingctx, x):
    """The float64 with the bits of an int64."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), generate


def _rounding(name: str) -> Any:
    """An LLVM intrinsic of one float32 or float64."""

    def typed(typingctx, x):
        if x not in (types.float32, types.float64):
            return None

        def generate(context, builder, signature, args):
            function = builder.module.declare_intrinsic(f"llvm.{name}", [args[0].type])
            return builder.call(function, args)

        return x(x), generate

    return intrinsic(typed)


floor = _rounding("floor")
ceil = _rounding("ceil")
rint = _rounding("rint")
sqrt = _rounding("sqrt")
fabs = _rounding("fabs")


@intrinsic
def fused_multiply_add(typingctx, x, y, z):
    """x y + z in float64, rounded once."""

    def generate(context, builder, signature, args):
        return builder.fma(*args)

    return types.float64(types.float64, types.float64, types.float64), generate


def _element(dtype: str) -> ir.Type:
    if dtype == "float16":
        return ir.HalfType()
    if dtype in ("float32", "float64"):
        return ir.FloatType() if dtype == "float32" else ir.DoubleType()
    if dtype == "bfloat16":
        return ir.IntType(16)
    return ir.IntType(8 if dtype == "bool" else register_type(dtype).bitwidth)


def register_type(dtype: str) -> Any:
    """Numba's type of an element in a register; half precision is held as float32."""
    if dtype in ("float16", "bfloat16"):
        return types.float32
    return types.boolean if dtype == "bool" else getattr(types, dtype)


def _pointer(builder: Any, address: Any, index: Any, element: ir.Type) -> Any:
    return builder.gep(builder.inttoptr(address, element.as_pointer()), [index])


def _mark(builder: Any, instruction: Any, region: int, regions: int) -> None:
    """Tells LLVM which memory an access touches, so that loops need no overlap tests."""
    module = builder.module
    domain = module.add_metadata(["cerebras_tf elementwise"])
    scopes = [module.add_metadata([f"cerebras_tf written {i}", domain]) for i in range(regions)]
    others = [scope for i, scope in enumerate(scopes) if i != region]
    if region >= 0:
        instruction.set_metadata("alias.scope", module.add_metadata([scopes[region]]))
    if others:
        instruction.set_metadata("noalias", module.add_metadata(others))


def loader(dtype: str, region: int, regions: int) -> Any:
    """A function (address, index) -> element `index` of the array at an address.

    Args:
        dtype: of the array.
        region: which of the written arrays it is; -1: an array that is only read.
        regions: number of written arrays; they overlap neither each other nor what is only read.
    """

    @intrinsic
    def load(typingctx, address, index):
        def generate(context, builder, signature, args):
            element = _element(dtype)
            value = builder.load(_pointer(builder, args[0], args[1], element))
            _mark(builder, value, region, regions)
            if dtype == "float16":
                return builder.fpext(value, ir.FloatType())
            if dtype == "bfloat16":
                upper = builder.shl(builder.zext(value, ir.IntType(32)), _HALF_BITS)
                return builder.bitcast(upper, ir.FloatType())
            if dtype == "bool":
                return builder.icmp_unsigned("!=", value, ir.Constant(element, 0))
            return value

        return register_type(dtype)(types.int64, types.int64), generate

    return load


def storer(dtype: str, region: int, regions: int) -> Any:
    """A function (address, index, value) that writes one element; arguments as for loader.

    A bfloat16 is written as the upper half of the float32, which must have been rounded to it.
    """

    @intrinsic
    def store(typingctx, address, index, value):
        def generate(context, builder, signature, args):
            element = _element(dtype)
            value = args[2]
            if dtype == "float16":
                value = builder.fptrunc(value, element)
            elif dtype == "bfloat16":
                bits = builder.bitcast(value, ir.IntType(32))
                value = builder.trunc(builder.lshr(bits, _HALF_BITS), element)
            elif dtype == "bool":
                value = builder.zext(value, element)
            written = builder.store(value, _pointer(builder, args[0], args[1], element))
            _mark(builder, written, region, regions)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, register_type(dtype)), generate

    return store


@intrinsic
def half(typingctx, x):
    """A float32 rounded to float16 and back."""

    def generate(context, builder, signature, args):
        return builder.fpext(builder.fptrunc(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.float32), generate
