"""Predict mode of GPT-J and GPT-NeoX: completions of prompts."""

from __future__ import annotations

from modelzoo.common.generate.prediction import compile_prediction, predict

__all__ = ["compile_prediction", "predict"]
