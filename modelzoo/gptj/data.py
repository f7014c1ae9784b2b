"""The input functions of GPT-J and GPT-NeoX. The data processors are shared, stand elsewhere."""

from modelzoo.common.data.functions import InputFunctions
from modelzoo.common.data.gpt import PROCESSORS
from modelzoo.gptj.params import Params

INPUTS = InputFunctions(Params, PROCESSORS)
