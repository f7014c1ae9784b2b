"""Predict mode of GPT-2 and GPT-3: completions of prompts."""

from modelzoo.common.generate.prediction import compile_prediction, predict

__all__ = ["compile_prediction", "predict"]
