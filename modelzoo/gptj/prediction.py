"""Predict mode of GPT-J and GPT-NeoX: completions of prompts."""

from modelzoo.common.generate.prediction import compile_prediction, predict

__all__ = ["compile_prediction", "predict"]
