"""Products in bfloat16: the definition, its compiled forms, and which instructions run them.

What the processor has is run; the assembly of the rest is looked at.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from cerebras_tf.errors import ConfigError
from cerebras_tf.ir import TensorType
from cerebras_tf.kernels import (
    cache_files,
    compiled_bfloat16,
    compiled_bfloat16_microkernels,
    compiled_threads,
    scratch,
)
from cerebras_tf.kernels import instruction_set as isa
from cerebras_tf.kernels.half_precision import as_bfloat16_operand, to_bfloat16, to_float32
from cerebras_tf.kernels.registry import COMPILED, PLAIN, evaluate

SIZES = [(m, k, n) for m in (1, 12, 13, 33) for k in (1, 2, 31, 33) for n in (1, 16, 17, 33)]
LARGER = [(100, 700, 97), (48, 3200, 40), (257, 768, 66)]
TINY = np.float32(np.finfo(np.float32).tiny)


@pytest.fixture(params=isa.KINDS)
def kind(request, monkeypatch):
    """Every kind of instruction that this machine has."""
    if isa.why_unavailable(request.param):
        pytest.skip(f"{request.param}: {isa.why_unavailable(request.param)}")
    choice = isa.Choice(request.param, "the test says so")
    monkeypatch.setattr(compiled_bfloat16, "instructions", lambda: choice)
    return request.param


def stored(random, rows, columns, transposed, dtype=np.float32):
    """A random matrix; as a transposed view if `transposed`."""
    shape = (columns, rows) if transposed else (rows, columns)
    made = random.standard_normal(shape).astype(dtype)
    return made.T if transposed else made


def rounded(x):
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def test_the_definition_rounds_operands_as_ml_dtypes_does():
    random = np.random.default_rng(0)
    a, b = (stored(random, 40, 40, False) for _ in range(2))
    found = PLAIN["matmul"](a, b, compute="bfloat16")
    np.testing.assert_allclose(found, rounded(a) @ rounded(b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_products_of_all_edges_are_sums_of_rounded_operands(kind, transposed):
    random = np.random.default_rng(1)
    for m, k, n in SIZES + LARGER:
        a, b = stored(random, m, k, transposed[0]), stored(random, k, n, transposed[1])
        wanted, most = rounded(a) @ rounded(b), np.abs(rounded(a)) @ np.abs(rounded(b))
        before = stored(random, m, n, False)
        for add in (False, True):
            out = before.copy()
            compiled_bfloat16.gemm(a, b, out, add=add)
            error = np.abs(out - wanted - (before if add else 0))
            assert (error <= 1e-6 * (most + np.abs(before) * add + 1e-30)).all(), (m, k, n, add)


def test_operands_and_results_of_any_steps_serve(kind):
    random = np.random.default_rng(2)
    a = stored(random, 60, 200, False)[::2, ::2]
    b = stored(random, 100, 140, False)[:, 10:80]
    out = np.full((60, 70), 7, np.float32)
    for result in (out[::2], np.full((70, 30), 7, np.float32).T):
        compiled_bfloat16.gemm(a, b, result)
        np.testing.assert_allclose(result, rounded(a) @ rounded(b), rtol=1e-5, atol=1e-4)
    assert (out[1::2] == 7).all()


def test_many_products_at_once_broadcast(kind):
    random = np.random.default_rng(3)
    a = random.standard_normal((2, 3, 33, 40)).astype(np.float32)
    b = random.standard_normal((3, 40, 20)).astype(np.float32)
    out = np.empty((2, 3, 33, 20), np.float32)
    compiled_bfloat16.gemm(a, b, out)
    np.testing.assert_allclose(out, rounded(a) @ rounded(b), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_operands_stored_in_bfloat16_give_the_same_bits(kind, transposed):
    random = np.random.default_rng(3)
    for m, k, n in [*SIZES, *LARGER, (3, 64, 32)]:
        full = [stored(random, m, k, transposed[0]), stored(random, k, n, transposed[1])]
        for x in full:
            x.flat[0], x.flat[-1] = TINY / 3, np.uint32(0x7F800001).view(np.float32)
        rest = [to_bfloat16(x.T if t else x) for x, t in zip(full, transposed)]
        rest = [x.T if t else x for x, t in zip(rest, transposed)]
        wanted, found = np.empty((m, n), np.float32), np.empty((m, n), np.float32)
        compiled_bfloat16.gemm(*full, wanted)
        for operands in (rest, (full[0], rest[1]), (rest[0], full[1])):
            compiled_bfloat16.gemm(*operands, found)
            np.testing.assert_array_equal(found, wanted, err_msg=str((m, k, n)))


def test_integers_are_exact(kind):
    random = np.random.default_rng(4)
    a = random.integers(-256, 257, (37, 90)).astype(np.float32)
    b = random.integers(-256, 257, (90, 41)).astype(np.float32)
    out = np.empty((37, 41), np.float32)
    compiled_bfloat16.gemm(a, b, out)
    np.testing.assert_array_equal(out, a @ b)


def test_empty_products(kind):
    out = np.full((3, 4), 7, np.float32)
    compiled_bfloat16.gemm(np.empty((3, 0), np.float32), np.empty((0, 4), np.float32), out)
    assert not out.any()
    compiled_bfloat16.gemm(
        np.empty((0, 5), np.float32), np.empty((5, 4), np.float32), np.empty((0, 4), np.float32)
    )


def test_infinities_and_nans_reach_their_sums_and_no_others(kind):
    a, b = np.ones((20, 40), np.float32), np.ones((40, 33), np.float32)
    a[3, 5], a[19, 39] = np.nan, np.inf
    b[7, 32] = -np.inf
    out = np.empty((20, 33), np.float32)
    compiled_bfloat16.gemm(a, b, out)
    with np.errstate(invalid="ignore"):
        wanted = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(out, wanted.astype(np.float32))
    # All bits of a NaN's payload in its lower half: cut off, they would leave an Inf.
    a[3, 5] = np.uint32(0x7F800001).view(np.float32)
    compiled_bfloat16.gemm(a, b, out)
    assert np.isnan(out[3]).all()


def test_subnormal_operands_and_results_are_zero(kind):
    a, b = np.zeros((16, 32), np.float32), np.zeros((32, 16), np.float32)
    a[0, 0], b[0, 0] = TINY / 2, 2.0**100  # an operand that is subnormal
    a[1, 1], b[1, 1] = TINY * 4, 2.0**-10  # a result that is
    a[2, 2], b[2, 2] = TINY * 4, -1.0
    a[3, 3], b[3, 3] = np.nextafter(TINY, np.float32(0)), 2.0**100  # bfloat16 would round it up
    out = np.empty((16, 16), np.float32)
    compiled_bfloat16.gemm(a, b, out)
    plain = PLAIN["matmul"](a, b, compute="bfloat16")
    assert plain[0, 0] == plain[1, 1] == 0 != plain[2, 2] == -4 * TINY
    np.testing.assert_allclose(out, plain, rtol=0, atol=1.2e-38)
    assert out[0, 0] == out[3, 3] == plain[3, 3] == 0


@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0)])
def test_bits_are_the_same_for_any_number_of_threads_and_size_of_blocks(
    kind, transposed, monkeypatch
):
    if kind == isa.NONE:
        pytest.skip("BLAS splits long sums by threads")
    random = np.random.default_rng(5)
    for m, k, n in ((300, 900, 200), (200, 500, 700), (33, 4000, 50)):
        a, b = stored(random, m, k, transposed[0]), stored(random, k, n, transposed[1])
        results = []
        for threads, block in ((1, 1 << 30), (2, 1 << 20), (3, 1 << 10)):
            monkeypatch.setattr(compiled_threads, "_pool", compiled_threads._Pool(threads))
            monkeypatch.setattr(compiled_bfloat16, "_BLOCK_BYTES", block)
            monkeypatch.setattr(compiled_bfloat16, "_SHARED_BYTES", block)
            monkeypatch.setitem(compiled_bfloat16._MIN_PARALLEL_WORK, kind, 1)
            results.append(np.empty((m, n), np.float32))
            compiled_bfloat16.gemm(a, b, results[-1])
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[0], results[2])


def test_a_product_for_one_thread_stays_on_it(kind, monkeypatch):
    if kind == isa.NONE:
        pytest.skip("BLAS has threads of its own")
    monkeypatch.setattr(compiled_bfloat16, "_BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(compiled_threads, "_shared_pool", None)
    a, b = np.ones((96, 64), np.float32), np.ones((64, 200), np.float32)
    out = np.empty((96, 200), np.float32)
    compiled_bfloat16.gemm(a, b, out, parts=1)
    assert (out == 64).all()


@pytest.mark.parametrize(("m", "k", "n"), [(3000, 500, 200), (200, 500, 3000), (300, 9000, 200)])
def test_scratch_memory_is_what_the_plan_counts(kind, m, k, n, monkeypatch):
    monkeypatch.setattr(compiled_threads, "_pool", compiled_threads._Pool(2))
    monkeypatch.setattr(compiled_bfloat16, "_BLOCK_BYTES", 1 << 18)
    monkeypatch.setattr(compiled_bfloat16, "_SHARED_BYTES", 1 << 20)
    monkeypatch.setitem(compiled_bfloat16._MIN_PARALLEL_WORK, kind, 1)
    random = np.random.default_rng(6)
    a, b = stored(random, m, k, False), stored(random, k, n, True)
    scratch.reset_peak()
    compiled_bfloat16.gemm(a, b, np.empty((m, n), np.float32))
    counted = compiled_bfloat16.scratch_bytes(m, k, n)
    assert 0.6 * counted < scratch.peak_bytes() <= counted
    if kind != isa.NONE:
        assert counted < 2.2 * max(1 << 20, 2 * 3072 * min(m, n))


@pytest.mark.parametrize("op", ["linear_softmax_xent", "linear_softmax_xent_train"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_loss_and_gradients_follow_their_definition(kind, op, transposed, biased):
    random = np.random.default_rng(7)
    hidden = random.standard_normal((70, 48)).astype(np.float32)
    weight = 0.3 * random.standard_normal((310, 48) if transposed else (48, 310)).astype(np.float32)
    labels = random.integers(0, 310, 70)
    operands = [hidden, weight, labels, *([random.random(310, np.float32)] if biased else [])]
    if op.endswith("train"):
        operands.insert(0, random.random(70, np.float32))
    attrs = {"transpose_weight": transposed, "compute": "bfloat16"}
    wanted = PLAIN[op](*operands, **attrs)
    out = tuple(np.empty(x.shape, np.float32) for x in wanted)
    COMPILED[op].run(*operands, out=out, **attrs)
    for found, expected in zip(out, wanted):
        # A number next to the middle between two bfloat16 may be rounded to the other one.
        assert np.linalg.norm(found - expected) <= 2e-4 * np.linalg.norm(expected)


@pytest.mark.parametrize("op", ["linear_softmax_xent", "linear_softmax_xent_train"])
def test_a_weight_that_is_stored_in_bfloat16_and_not_trained_gives_the_same_bits(kind, op):
    random = np.random.default_rng(9)
    weight = to_bfloat16(random.standard_normal((310, 48)).astype(np.float32))
    operands = [random.standard_normal((70, 48)).astype(np.float32), weight]
    operands.append(random.integers(0, 310, 70))
    attrs = {"transpose_weight": True, "compute": "bfloat16"}
    shapes = [(70,), (70,)]
    if op.endswith("train"):
        operands.insert(0, random.random(70, np.float32))
        shapes = [(70,), (70, 48)]
    found, expected = (tuple(np.empty(s, np.float32) for s in shapes) for _ in range(2))
    frozen = {"weight_gradient": False} if op.endswith("train") else {}
    COMPILED[op].run(*operands, out=found, **attrs, **frozen)
    wide = [to_float32(x) if x is weight else x for x in operands]
    dweight = (np.empty((310, 48), np.float32),) if frozen else ()
    COMPILED[op].run(*wide, out=(*expected, *dweight), **attrs)
    for ours, theirs in zip(found, expected):
        np.testing.assert_array_equal(ours, theirs)
    plain = PLAIN[op](*wide, **attrs, **frozen)
    assert len(plain) == 2
    np.testing.assert_allclose(found[0], plain[0], rtol=2e-3)


def test_rounding_without_instructions_is_what_instructions_read():
    random = np.random.default_rng(8)
    bits = random.integers(0, 2**32, 5000, np.uint32)
    numbers = np.concatenate([bits.view(np.float32), np.float32([0, -0.0, np.inf, -np.inf])])
    out = np.empty_like(numbers)
    compiled_bfloat16.round_into(numbers, out, 1)
    np.testing.assert_array_equal(out.view(np.uint32) >> 31, numbers.view(np.uint32) >> 31)
    np.testing.assert_array_equal(out, as_bfloat16_operand(numbers))


def in_process(code, **environment):
    """The output of code in a Python of its own."""
    environment = {**os.environ, **environment}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


ASSEMBLY = """
from numba import types
from cerebras_tf.kernels import compiled_bfloat16_microkernels as kernels
i = types.int64
four, three, two = (types.UniTuple(i, n) for n in (4, 3, 2))
signature = dict(
    vector_gemm=[four, two, i, two, i], amx_gemm=[four, i, i, two, three, i]
)["{name}"]
kernel = kernels.{name}
kernel.compile(tuple(signature))
text = kernel.inspect_asm(kernel.signatures[0])
print("".join(line + chr(10) for line in text.splitlines() if line.strip()[:1] in "ltv"))
"""


@pytest.mark.parametrize(
    ("name", "features", "instructions"),
    [
        ("vector_gemm", "+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512bf16", ["vdpbf16ps"]),
        (
            "amx_gemm",
            "+avx512f,+amx-tile,+amx-bf16",
            [
                *("ldtilecfg", "tilezero", "tileloadd", "tileloaddt1", "tdpbf16ps"),
                *("tilestored", "tilerelease"),
            ],
        ),
    ],
)
def test_kernels_consist_of_the_instructions_they_are_named_for(
    name, features, instructions, tmp_path
):
    """Compiled anew, for Numba shows no assembly of cached code; on any processor, not run."""
    code = ASSEMBLY.format(name=name)
    lines = in_process(
        code,
        NUMBA_CPU_NAME="sapphirerapids",
        NUMBA_CPU_FEATURES=features,
        NUMBA_CACHE_DIR=str(tmp_path),
    ).splitlines()
    count = {word: sum(word in line for line in lines) for word in instructions}
    assert all(count.values()), count
    if name == "amx_gemm":
        assert count["tdpbf16ps"] % 4 == 0  # four tiles of sums
    else:
        dots = [line for line in lines if "vdpbf16ps" in line]
        assert len(dots) % 24 == 0  # 12 rows of two registers each
        assert all("rsp" not in line for line in dots)  # none is spilled


class Tiles:
    """AMX in NumPy, as the architecture defines it: what each instruction does to eight tiles."""

    def __init__(self, monkeypatch):
        self.tiles = np.zeros((8, 16, 64), np.uint8)
        self.configured = False
        patch = functools.partial(monkeypatch.setattr, compiled_bfloat16_microkernels)
        patch("configure_tiles", self.configure)
        patch("release_tiles", self.release)
        patch("copy_rows", self.copy_rows)
        for tile in range(8):
            patch(f"_load{tile}", functools.partial(self.load, tile))
        for tile in range(4, 8):
            patch(f"_stream{tile}", functools.partial(self.load, tile))
        for name in ("_prefetch_for_write", "_prefetch_l2"):
            patch(name, lambda address: None)  # it may lie beyond the memory
        for tile in range(4):
            patch(f"_zero{tile}", functools.partial(self.tiles[tile].fill, 0))
            patch(f"_store{tile}", functools.partial(self.store, tile))
            patch(f"_dot{tile}", functools.partial(self.dot, tile, 4 + tile // 2, 6 + tile % 2))
        for name in ("_amx_kernel", "load_tiles", "zero_tiles", "store_tiles"):
            patch(name, getattr(compiled_bfloat16_microkernels, name).py_func)

    def configure(self, address):
        given = np.frombuffer(ctypes.string_at(address, 64), np.uint8)
        assert address % 64 == 0
        assert given[0] == 1  # the palette of eight tiles
        assert not given[1:16].any()
        assert (given[16:32].view(np.uint16) == 64).all()  # bytes of a row
        assert (given[48:56] == 16).all()  # rows
        assert not given[32:48].any() and not given[56:].any()
        self.configured = True

    def release(self):
        assert self.configured
        self.configured = False

    def load(self, tile, address, step):
        for row in range(16):
            ctypes.memmove(self.tiles[tile, row].ctypes.data, address + row * step, 64)

    def store(self, tile, address, step):
        for row in range(16):
            ctypes.memmove(address + row * step, self.tiles[tile, row].ctypes.data, 64)

    def dot(self, c, a, b):
        pairs = [(x.view(np.uint16).astype(np.uint32) << 16).view(np.float32) for x in self.tiles]
        total = self.tiles[c].view(np.float32)
        for k in range(16):
            for part in range(2):
                left = pairs[a][:, 2 * k + part]
                with np.errstate(all="ignore"):  # rows beyond the last hold anything
                    total += left[:, None] * pairs[b][k, part::2]

    def copy_rows(self, target, to_step, source, from_step, rows, size):
        for row in range(rows):
            ctypes.memmove(target + row * to_step, source + row * from_step, size)


@pytest.mark.parametrize(
    "size", [(32, 32, 32), (33, 40, 50), (70, 1600, 33), (5, 31, 64), (33, 700, 70)]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_tiles_are_addressed_as_the_architecture_defines_them(size, transposed, monkeypatch):
    """The loops of the AMX kernel, run by Python on an emulation of the instructions."""
    rows, inner, columns = size
    random = np.random.default_rng(9)
    Tiles(monkeypatch)
    monkeypatch.setattr(
        compiled_bfloat16, "amx_gemm", compiled_bfloat16_microkernels.amx_gemm.py_func
    )
    blocks = compiled_bfloat16._amx_blocks.py_func
    monkeypatch.setattr(compiled_bfloat16, "_amx_blocks", blocks)
    a, b = stored(random, rows, inner, transposed), stored(random, inner, columns, not transposed)
    # At rest in bfloat16: rounding takes an instruction.
    given = [to_bfloat16(x.T).T if x.flags.f_contiguous else to_bfloat16(x) for x in (a, b)]
    out = random.standard_normal((rows, columns)).astype(np.float32)
    wanted = out + rounded(a) @ rounded(b)
    compiled_bfloat16._packed_gemm(isa.AMX, *given, out, True, 1)
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-4)
    compiled_bfloat16._packed_gemm(isa.AMX, *given, out, False, 1)
    np.testing.assert_allclose(out, rounded(a) @ rounded(b), rtol=1e-5, atol=1e-4)


def test_processors_without_instructions_multiply_in_float32(monkeypatch):
    monkeypatch.delenv(isa.VARIABLE, raising=False)
    monkeypatch.setattr(isa, "_why_no_amx", lambda: "the processor has no AMX")
    monkeypatch.setattr(isa, "_why_no_avx512_bf16", lambda: "the processor has no AVX512-BF16")
    choice = isa.choose(lambda: 9.0, None)
    assert choice.kind == isa.NONE
    assert "this run is not faster: the processor has no AMX, and the" in isa.summarize(choice)


@pytest.mark.parametrize(
    ("gain", "kind"), [(0.7, isa.NONE), (1.0, isa.NONE), (1.8, isa.AVX512_BF16)]
)
def test_a_trial_decides_once_and_is_remembered(gain, kind, monkeypatch, tmp_path):
    monkeypatch.delenv(isa.VARIABLE, raising=False)
    monkeypatch.setattr(isa, "_why_no_amx", lambda: "the processor has no AMX")
    monkeypatch.setattr(isa, "_why_no_avx512_bf16", lambda: "")
    trials = []

    def trial():
        trials.append(gain)
        return gain

    assert isa.choose(trial, tmp_path) == isa.choose(trial, tmp_path)
    assert isa.choose(trial, tmp_path).kind == kind
    assert len(trials) == 1
    (path,) = tmp_path.iterdir()
    path.write_text("damaged")
    monkeypatch.setattr(cache_files, "_warned", set())
    with pytest.warns(RuntimeWarning, match="undamaged"):
        assert isa.choose(trial, tmp_path).kind == kind
    assert len(trials) == 2


def test_amx_is_chosen_where_it_is_permitted(monkeypatch):
    monkeypatch.delenv(isa.VARIABLE, raising=False)
    monkeypatch.setattr(isa, "_why_no_amx", lambda: "")
    assert isa.choose(lambda: 9.0, None).kind == isa.AMX


def test_tiles_need_the_instruction_that_rounds_their_operands(monkeypatch):
    monkeypatch.delenv(isa.VARIABLE, raising=False)
    monkeypatch.setattr(isa, "features", lambda: frozenset({"amx-bf16", "amx-tile"}))
    isa._why_no_amx.cache_clear()
    try:
        choice = isa.choose(lambda: 9.0, None)
    finally:
        isa._why_no_amx.cache_clear()
    reason = "AMX also needs AVX512-BF16, and the processor has no AVX512-BF16"
    assert choice == isa.Choice(isa.NONE, reason)


def test_the_environment_variable_chooses_or_is_refused(monkeypatch):
    monkeypatch.setenv(isa.VARIABLE, "none")
    assert isa.choose(lambda: 9.0, None).kind == isa.NONE
    monkeypatch.setenv(isa.VARIABLE, "avx")
    with pytest.raises(ConfigError, match="one of baseline, .*amx"):
        isa.choose(lambda: 9.0, None)
    monkeypatch.setenv(isa.VARIABLE, "amx")
    monkeypatch.setattr(isa, "_why_no_amx", lambda: "the processor has no AMX")
    with pytest.raises(ConfigError, match="but the processor has no AMX"):
        isa.choose(lambda: 9.0, None)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("lefts, rights", [(1, 3), (3, 1), (3, 3)])
@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1)])
@pytest.mark.parametrize("rows", [40, 300])
def test_grouped_products_are_those_of_single_products(
    kind, dtype, lefts, rights, transposed, rows
):
    """Of 40 rows, products run one by one; a sum differs by the order of its float32 additions."""
    random, inner = np.random.default_rng(8), (50, 70, 33) if lefts == rights else (70,) * 3
    tall, wide = (rows, 90 if lefts > 1 == rights else rows, 33), (64, 97, 33)
    a = [
        stored(random, rows if lefts == rights else tall[i], inner[i], False) for i in range(lefts)
    ]
    b = [stored(random, inner[i], 64 if lefts == rights else wide[i], False) for i in range(rights)]
    as_stored = [x.T if turned else x for xs, turned in zip((a, b), transposed) for x in xs]
    operands = [np.ascontiguousarray(x) for x in as_stored]
    given = [x if dtype == np.float32 else to_bfloat16(x) for x in operands]
    turned = {"transpose_a": bool(transposed[0]), "transpose_b": bool(transposed[1])}
    attrs = {"lefts": lefts, "summed": lefts == rights, "compute": "bfloat16", **turned}
    wanted = evaluate("grouped_matmul", [as_bfloat16_operand(x) for x in operands], attrs)
    out = tuple(np.full(x.shape, np.nan, np.float32) for x in wanted)
    types = [TensorType("float32" if x.dtype == np.float32 else "bfloat16", x.shape) for x in given]
    scratch.reset_peak()
    COMPILED["grouped_matmul"].run(*given, out=out, **attrs)
    assert scratch.peak_bytes() <= COMPILED["grouped_matmul"].scratch(*types, **attrs).shared
    for found, expected in zip(out, wanted):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("same", [0, 1])
def test_a_sum_of_products_may_have_one_operand_twice(kind, same):
    random = np.random.default_rng(9)
    a, b, other = (stored(random, 600, 600, False) for _ in range(3))
    operands = [a, a, b, other] if same == 0 else [a, other, b, b]
    attrs = {"lefts": 2, "summed": True, "compute": "bfloat16"}
    (wanted,) = evaluate("grouped_matmul", operands, attrs)
    out = np.full(wanted.shape, np.nan, np.float32)
    COMPILED["grouped_matmul"].run(*operands, out=(out,), **attrs)
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-4)
