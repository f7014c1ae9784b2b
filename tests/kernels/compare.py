"""How a compiled kernel is compared with its definition: the plain kernel in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cerebras_tf.kernels import compiled_attention, compiled_flash_attention
from cerebras_tf.kernels.registry import COMPILED, evaluate


def check_compiled(
    name: str, arrays: list[np.ndarray], near: tuple[float, float], **attrs: Any
) -> tuple[np.ndarray, ...]:
    """Runs both kernels, asserts that they agree, and returns the compiled one's outputs.

    Args:
        name: op.
        arrays: operands; float32 ones are widened for the plain kernel.
        near: relative tolerance, and absolute one as a share of the largest expected magnitude.
        attrs: attributes.
    """
    kept = [np.array(array) for array in arrays]
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
    expected = evaluate(name, wide, attrs)
    out = tuple(
        np.full(e.shape, np.nan, np.float32 if e.dtype == np.float64 else e.dtype) for e in expected
    )
    COMPILED[name].run(*arrays, out=out, **attrs)
    for found, wanted in zip(out, expected):
        largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-30)
        np.testing.assert_allclose(
            found, wanted, near[0], near[1] * max(largest, 1.0), err_msg=name
        )
    for array, before in zip(arrays, kept):
        np.testing.assert_array_equal(array, before, err_msg=f"{name} wrote to an operand")
    return out


def without_sgemm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs attention as without the library: heads in Python, the softmax compiled."""
    flash = compiled_flash_attention
    if not flash.SGEMM:  # so it is here
        return
    monkeypatch.setattr(flash, "SGEMM", 0)
    monkeypatch.setattr(flash, "_gemm", flash._numpy_gemm)
    monkeypatch.setattr(flash, "_score_block", flash.score_block.py_func)
    shared = ("attention_head", "attention_head_grad", "head_dropout")
    heads = ("_attend", "_attend_grad", "_attention_heads", "_attention_grad_heads")
    for module, names in ((flash, shared), (compiled_attention, (*heads, "_rows_of_head"))):
        for name in names:
            python = getattr(module, name).py_func
            monkeypatch.setattr(module, name, python)
            if name in shared:
                monkeypatch.setattr(compiled_attention, name, python)
