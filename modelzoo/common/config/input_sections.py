"""The input sections of language models that predict the next token. Imports no TensorFlow."""

from dataclasses import dataclass
from typing import Any, Optional, Union

from cerebras_tf.config.schema import SMALLEST_FLOAT, build_variant
from modelzoo.common.config.base_params import BaseParams
from modelzoo.common.config.model_sections import OrderKeys, RecordInput, SequenceInput, StreamKeys
from modelzoo.common.config.sections import field
from modelzoo.common.tokenizers.tokenizers import KINDS

BYTE_VOCAB_SIZE = 257  # 256 byte values and the end-of-document token
TEXT_PATTERNS = ("*.txt", "*.md", "*.rst", "*.py")


@dataclass(frozen=True, kw_only=True)
class TextFileKeys(OrderKeys):
    """Which text a section reads, and which of it is for evaluation; see GptTextDataInput."""

    data_dir: Union[str, list[str], None] = field(None, path=True)
    file_patterns: list[str] = field(TEXT_PATTERNS)
    eval_fraction: float = field(0.05, minimum=0.0)
    text_key: str = field("text", "Key or column of the text in rows.")
    cache_dir: Optional[str] = field(
        None,
        "Folder of the tokens of large texts. null: `~/.cache/cerebras_tf/tokens`, "
        "where the least recently used files are removed above 32 GiB.",
        path="as given",
    )

    def problems(self):
        if self.eval_fraction >= 1:
            yield "eval_fraction", "must be below 1, so that training has data."


@dataclass(frozen=True, kw_only=True)
class GptTfRecordsInput(StreamKeys, RecordInput):
    """An input section with ``data_processor: GptTfRecordsProcessor``."""

    vocab_size: int = field(minimum=1)


@dataclass(frozen=True, kw_only=True)
class GptHdf5Input(OrderKeys, RecordInput):
    """An input section with ``data_processor: GptHDF5DataProcessor``."""

    vocab_size: int = field(minimum=1)


@dataclass(frozen=True, kw_only=True)
class GptTextDataInput(TextFileKeys, SequenceInput):
    """An input section with ``data_processor: GptTextDataProcessor``: text without preparation.

    `data_dir` is a folder, a file, a glob or a list of them. null reads the data of `train_input`,
    and there the included plays. In folders, files that match one of `file_patterns` are read; with
    the default patterns, a folder may instead have files of rows: JSON lines, CSV, TSV, Parquet and
    Arrow (a folder of `datasets.save_to_disk`). A row has its text under `text_key`. Files and
    folders whose names begin with a dot are not read.

    If all names are of splits, such as ``train-00000-of-00001.parquet`` and ``test.jsonl``, files
    are read by their names. Otherwise the fraction `eval_fraction` is for evaluation: a hash of
    their path in the folder selects the files. If that leaves no file on one side, such as of a
    single file, all text is one sequence, and its end is for evaluation.

    Text that is larger than memory is stored as tokens in `cache_dir` and read from there.
    """

    max_sequence_length: int = field(minimum=2)
    vocab_size: int = field(BYTE_VOCAB_SIZE, minimum=1)
    tokenizer: Optional[str] = field(
        None,
        "Folder with tokenizer.json or with vocab.json and merges.txt, or a tokenizer.json. null: "
        "bytes are tokens.",
        path=True,
    )
    eos_id: Optional[int] = field(
        None, "Id of the token that ends a document. null: that of the tokenizer.", minimum=0
    )

    def problems(self):
        yield from super().problems()
        if self.tokenizer is None and self.vocab_size < BYTE_VOCAB_SIZE:
            yield "vocab_size", f"must be at least {BYTE_VOCAB_SIZE}, or set tokenizer."


@dataclass(frozen=True, kw_only=True)
class GptPromptsInput:
    """A predict_input with ``data_processor: GptPromptsProcessor``: prompts to complete.

    `prompt_file` is a JSON lines file (.jsonl, .json) with ``prompt`` or ``text`` (a string) or
    ``prompt_tokens`` (a list of integers), or a text file with one prompt per line and no blank
    lines. A completion ends after `max_new_tokens`, at the end-of-text token, before a string in
    `stop`, or when prompt and completion have `max_sequence_length` tokens (null: the model's
    positions). A `repetition_penalty` above 1 makes it less likely that tokens are repeated.
    Temperature 0 is greedy decoding. Otherwise tokens are sampled from the `top_k` most probable,
    and of these from the smallest set with a total probability of `top_p`. Other keys of a row are
    copied to its completion. The key ``reference`` is a text that the completion is scored with.
    """

    data_processor: str
    prompt_file: str = field(path=True)
    batch_size: int = field(minimum=1)
    max_sequence_length: Optional[int] = field(None, minimum=2)
    vocab_size: Optional[int] = field(None, minimum=1)
    tokenizer_type: str = field("ByteTokenizer", choices=KINDS)
    vocab_file: Optional[str] = field(None, path=True)
    encoder_file: Optional[str] = field(None, path=True)
    eos_id: Optional[int] = field(
        None, "Id of the end-of-text token. null: that of the tokenizer.", minimum=0
    )
    max_new_tokens: int = field(64, minimum=1)
    num_samples: int = field(1, "Number of completions per prompt.", minimum=1)
    temperature: float = field(1.0, minimum=0.0)
    top_k: Optional[int] = field(None, minimum=1)
    top_p: float = field(1.0, minimum=0.0)
    repetition_penalty: float = field(1.0, minimum=0.0)
    seed: int = field(0, minimum=0)
    stop: list[str] = field(())
    # Taken over from evaluation, which has other values for other processors.
    shuffle: bool = field(False, choices=(False,))
    repeat: bool = field(False, choices=(False,))
    skip_steps: Optional[int] = field(None, minimum=0)

    def problems(self):
        if not 0 < self.top_p <= 1:
            yield "top_p", "must be above 0 and at most 1."
        if not self.repetition_penalty > 0:
            yield "repetition_penalty", "must be above 0. 1 disables it."
        for key in ("temperature", "repetition_penalty"):
            if 0 < vars(self)[key] < SMALLEST_FLOAT:
                yield key, f"must be at least {SMALLEST_FLOAT:.2g}, the smallest normal float32."
            if not vars(self)[key] < float("inf"):
                yield key, "must be a finite number."
        if self.temperature == 0 or self.top_k == 1:
            if self.num_samples > 1:
                yield "num_samples", "must be 1 with greedy decoding."
            if self.top_p < 1:
                yield "top_p", "has no effect with greedy decoding. Remove it."
        if self.temperature == 0 and (self.top_k or 1) > 1:
            yield "top_k", "has no effect with temperature 0. Remove it."
        if "" in self.stop:
            yield "stop", "must not contain empty strings."


# The keys of text that evaluation inherits from training.
TEXT_KEYS = ("file_patterns", "eval_fraction", "text_key", "cache_dir", "tokenizer", "eos_id")
TRAINING_SECTIONS = {
    "GptTfRecordsProcessor": GptTfRecordsInput,
    "GptHDF5DataProcessor": GptHdf5Input,
    "GptTextDataProcessor": GptTextDataInput,
}
build_gpt_input = build_variant("data_processor", TRAINING_SECTIONS)
build_gpt_predict_input = build_variant(
    "data_processor", {**TRAINING_SECTIONS, "GptPromptsProcessor": GptPromptsInput}
)


@dataclass(frozen=True, kw_only=True)
class LanguageModelParams(BaseParams):
    """The whole YAML of a model that predicts the next token.

    Predict mode needs a section of its own: the likeliest next token at every place of `eval_input`
    is hardly ever what was meant.
    """

    train_input: Any = field(build=build_gpt_input)
    eval_input: Any = field(None, build=build_gpt_input)
    predict_input: Any = field(None, build=build_gpt_predict_input)

    INHERITED_KEYS = (
        "data_processor",
        "vocab_size",
        "max_sequence_length",
        "batch_size",
        *TEXT_KEYS,
    )
    PREDICTS_EVAL_INPUT = False
    ADVICE = {
        **BaseParams.ADVICE,
        "predict_input": "`predict_input: {data_processor: GptPromptsProcessor, prompt_file: "
        "prompts.txt, tokenizer_type: ByteTokenizer, batch_size: 4}` continues lines of a file; "
        "`predict_input: {}` predicts the next token at every place of eval_input.",
    }


def length_problems(params, longest):
    """Yields input sections that are longer than the model, or of another vocabulary.

    Args:
        longest: positions of the model; None where it has no limit.
    """
    vocab_size = params.train_input.vocab_size
    for name, section in params.inputs():
        length = section.max_sequence_length
        if longest is not None and length is not None and length > longest:
            yield (
                f"{name}.max_sequence_length",
                f"must not exceed the {longest} positions of the model.",
            )
        if section.vocab_size not in (None, vocab_size):
            yield f"{name}.vocab_size", f"must equal train_input.vocab_size ({vocab_size})."
