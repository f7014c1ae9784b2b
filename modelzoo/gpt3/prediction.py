"""Predict mode of GPT-2 and GPT-3: completes prompts. The driver is shared."""

from __future__ import annotations

from modelzoo.common.generate.prediction import compile_prediction, predict

__all__ = ["compile_prediction", "predict"]
