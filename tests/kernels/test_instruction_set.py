"""Processors with fewer instructions, as CEREBRAS_TF_ISA imitates them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cerebras_tf.kernels import instruction_set as isa
from tests.kernels.test_bfloat16 import in_process

NEW = {"amx-tile", "amx-bf16", "avx512f", "avx512bf16", "avx512vl"}
# A checksum, a product without packing and a normalization, against NumPy.
KERNELS = """
import numpy as np
from cerebras_tf.kernels import blas, compiled_crc32c, instruction_set
assert compiled_crc32c.crc32c(np.frombuffer(b"123456789", np.uint8)) == 0xE3069283
random = np.random.default_rng(0)
for rows, inner, columns in ((3, 5, 7), (40, 33, 65), (300, 300, 300)):
    a, b = random.standard_normal((rows, inner)), random.standard_normal((inner, columns))
    out = np.empty((rows, columns), np.float32)
    blas.gemm(a.astype(np.float32), b.astype(np.float32), out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)
print(*sorted(instruction_set.features()))
"""


@pytest.fixture
def masked(monkeypatch):
    """Returns the features that remain at a level on a processor that has everything."""

    def at(level):
        monkeypatch.setenv(isa.VARIABLE, level)
        isa.features.cache_clear()
        return isa.features()

    has = dict.fromkeys([*NEW, "avx2", "fma", "sse2", "sse4.2", "avx512fp16"], True)
    monkeypatch.setattr(isa, "_host_features", lambda: has)
    yield at
    isa.features.cache_clear()


def test_levels_leave_out_what_such_processors_lack(masked):
    assert NEW | {"avx2"} <= masked("none")
    assert masked("avx2") == {"avx2", "fma", "sse2", "sse4.2"}
    assert {"-avx512f", "-amx-tile", "+avx2"} <= set(isa.llvm_features().split(","))
    assert isa.choose(lambda: 9.0, None).kind == isa.NONE
    assert masked("baseline") == {"sse2"}
    assert {"-avx2", "-fma", "+sse2"} <= set(isa.llvm_features().split(","))


def test_kernels_run_without_instructions_beyond_the_architecture():
    lines = in_process(KERNELS, CEREBRAS_TF_ISA="baseline")
    assert not NEW & set(lines.split()) and "avx2" not in lines.split()


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.parametrize("level", ["avx2", "baseline"])
def test_training_without_newer_instructions_has_the_same_losses(tmp_path, level):
    command = (
        "from modelzoo.commands.main import main\n"
        "main(['train', '-p', 'configs/params_gpt3_tiny.yaml', '--max_steps', '20', '-o', {!r}])"
    )
    given = {"CEREBRAS_TF_ISA": "none"}, {"CEREBRAS_TF_ISA": level}
    losses = []
    for number, variables in enumerate(given):
        code = "import sys; sys.stderr = sys.stdout\n" + command.format(str(tmp_path / str(number)))
        losses.append(
            [float(x) for x in re.findall(r"loss = (\S+),", in_process(code, **variables))]
        )
    assert len(losses[0]) == 3
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
