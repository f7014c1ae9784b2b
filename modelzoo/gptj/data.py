"""The input functions of GPT-J and GPT-NeoX. The data processors are shared, stand elsewhere."""

from __future__ import annotations

from modelzoo.common.input.functions import InputFunctions
from modelzoo.common.input.gpt import PROCESSORS
from modelzoo.gptj.params import Params

INPUTS = InputFunctions(Params, PROCESSORS)
