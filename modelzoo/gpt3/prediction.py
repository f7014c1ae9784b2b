"""Predict mode of GPT-2 and GPT-3: completes prompts. The driver is shared."""

from __future__ import annotations

from modelzoo.common.generation.prediction import predict

__all__ = ["predict"]
