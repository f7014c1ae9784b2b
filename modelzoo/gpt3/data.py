"""The input functions of GPT-2 and GPT-3."""

from modelzoo.common.data.functions import InputFunctions
from modelzoo.common.data.gpt import PROCESSORS
from modelzoo.gpt3.params import Params

INPUTS = InputFunctions(Params, PROCESSORS)
