"""The YAML schema of transformers models. It imports neither PyTorch nor transformers."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Optional, Union

from cerebras_tf.errors import ConfigError
from modelzoo.common.config.base_params import BaseParams
from modelzoo.common.config.input_sections import TEXT_KEYS, GptTextDataInput
from modelzoo.common.config.model_sections import OrderKeys, RecordInput
from modelzoo.common.config.sections import OptimizerParams, build_variant, field, taking
from modelzoo.common.files.json_text import parse_json

CONFIG = "config.json"
# The keys of runconfig that training by the PyTorch engine reads.
RUNCONFIG_KEYS = (
    "mode",
    "model_dir",
    "max_steps",
    "steps",
    "eval_steps",
    "save_summary_steps",
    "save_checkpoints_steps",
    "keep_checkpoint_max",
    "log_step_count_steps",
    "tf_random_seed",
    "checkpoint_path",
    "precision",
    "attention_precision",
    "keep_float32",
    "micro_batches",
    "num_csx",
    "num_threads",
    "memoryx_dir",
    "memoryx_ram_gb",
    "memoryx_moment_dtype",
    "wafer_memory_gb",
    "compile_dir",
    "cs_ip",
    "loggers",
    "profile",
)


def build_config(value, path, report):
    """Builds the keys of a configuration of transformers, which are checked when it is made."""
    if isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
        return dict(value)
    return report.add(path, f"{path} must be a section of keys.", value)


taking(build_config, words="a section of keys of transformers' configuration")


@dataclass(frozen=True, kw_only=True)
class HuggingFaceModelParams:
    """The section ``model``.

    `pretrained` is a folder that transformers' save_pretrained wrote: config.json, weights and
    usually a tokenizer. Without it, `config` describes a model whose weights are initialized
    randomly: `model_type` and keys of its configuration class, such as `hidden_size`. With it, the
    keys of `config` replace those of config.json.
    """

    pretrained: Optional[str] = field(None, "Folder of a transformers model.", path=True)
    config: Any = field(None, "Configuration of the model, with `model_type`.", build=build_config)
    weight_initialization_seed: Optional[int] = field(
        None, "Random seed of the initial weights. null: tf_random_seed, or 0.", long=True
    )
    use_vsl: bool = field(
        True, "Whether padding is removed where the compiler proves that results do not change."
    )

    mixed_precision: ClassVar[bool] = False  # runconfig.precision sets the precision

    def problems(self):
        if self.pretrained is None and "model_type" not in (self.config or {}):
            yield "config", "must have the key model_type, unless pretrained is set."

    @property
    def facts(self):
        """The configuration as far as it is known without transformers: config.json and `config`.

        Raises:
            ConfigError: the folder has no readable config.json.
        """
        return {**(read_config(self.pretrained) if self.pretrained else {}), **(self.config or {})}


@dataclass(frozen=True, kw_only=True)
class ClassifierModelParams(HuggingFaceModelParams):
    """The section ``model`` of a classification; see HuggingFaceModelParams."""

    num_labels: int = field(2, "Number of labels.", minimum=2)


@dataclass(frozen=True, kw_only=True)
class SummarizationModelParams(HuggingFaceModelParams):
    """The section ``model`` of extractive summarization; see HuggingFaceModelParams.

    The loss is the sum over sentences, multiplied by `loss_weight` and divided by the batch size.
    """

    loss_weight: float = 0.0625


def read_config(folder, required=False):
    """Reads config.json of a folder of transformers.

    Args:
        required: whether a folder that does not exist is an error; else it has no keys.
    """
    path = Path(folder, CONFIG)
    if not path.parent.exists() and not required:
        return {}
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("no object")
        return found
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder}: model.pretrained must be a folder of a transformers model, with {CONFIG}. "
            f"Received: {error}. Use a folder that save_pretrained wrote."
        ) from error


# ---- optimizer


@dataclass(frozen=True)
class TorchOptimizerParams(OptimizerParams):
    """The section ``optimizer`` of transformers models: the optimizers of ``torch.optim``.

    `sgd` and `momentum` are SGD, `adam` is Adam, `adamw` is AdamW. Both Adams correct the bias of
    their moments, and add `epsilon` to the square root of the corrected second moment. Weight
    decay does not apply to parameters whose name matches `exclude_from_weight_decay`.
    """

    optimizer_type: str = field(choices=("sgd", "momentum", "adam", "adamw"))
    epsilon_mode: str = field("corrected", choices=("corrected",))
    use_bias_correction: bool = field(True, choices=(True,))
    exclude_from_weight_decay: list[str] = field(
        ("[Nn]orm", "bias"), "Regular expressions of parameter names without weight decay."
    )
    loss_scaling_factor: float = field(1.0, choices=(1.0,))
    log_summaries: bool = field(False, choices=(False,))
    log_grads: bool = field(False, choices=(False,))
    log_hists: bool = field(False, choices=(False,))
    ws_summary: bool = field(False, choices=(False,))


# ---- input sections


@dataclass(frozen=True, kw_only=True)
class TokenRecordsInput(OrderKeys, RecordInput):
    """An input section that reads records of ``cerebras-tf prepare gpt`` or ``prepare chat``.

    GptTfRecordsProcessor reads TFRecords, GptHDF5DataProcessor HDF5 files. Records are shuffled as
    a whole.
    """

    vocab_size: Optional[int] = field(None, "null: that of the model.", minimum=1)


@dataclass(frozen=True, kw_only=True)
class TextInput(GptTextDataInput):
    """An input section with ``data_processor: GptTextDataProcessor``: text without preparation.

    `vocab_size`, `tokenizer` and `eos_id` are by default those of the model; without
    `model.pretrained`, bytes are tokens. The other keys are those of GPT-2.
    """

    vocab_size: Optional[int] = field(  # type: ignore[assignment]
        None, "null: that of the model.", minimum=1
    )

    def problems(self):
        if self.vocab_size is not None:
            yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class ChatInput(OrderKeys):
    """An input section with ``data_processor: ChatDataProcessor``: conversations.

    `data_dir` is a JSON lines file or a folder of them. A row has ``messages``, a list of
    ``{"role": ..., "content": ...}``, or ``prompt`` and ``completion``, which are texts or lists of
    messages. The chat template of the tokenizer makes tokens of them. The loss is that of the
    assistant's turns, with the token that ends a turn, or that of the completion. With `packing`
    a row of a batch has several conversations, and attention does not cross them.
    `cerebras-tf prepare chat --show 3` shows which tokens have a weight.
    """

    data_processor: str
    data_dir: Union[str, list[str]] = field(text="JSON lines files, or folders of them.", path=True)
    max_sequence_length: int = field(
        text="Tokens of a row. Longer conversations are truncated.", minimum=2
    )
    batch_size: int = field(text="Batch size of one wafer.", minimum=1)
    tokenizer: Optional[str] = field(
        None, "Folder of a transformers tokenizer. null: model.pretrained.", path=True
    )
    chat_template: Optional[str] = field(
        None, "File of a Jinja template. null: that of the tokenizer.", path=True
    )
    packing: bool = field(True, "Whether a row has several conversations.")


@dataclass(frozen=True, kw_only=True)
class FineTuningRecordsInput(OrderKeys, RecordInput):
    """An input section that reads records of ``cerebras-tf prepare`` for a fine-tuning of BERT.

    Batches are cropped to their longest example.
    """

    vocab_size: Optional[int] = field(None, "null: that of the model.", minimum=1)


@dataclass(frozen=True, kw_only=True)
class SentenceRecordsInput(FineTuningRecordsInput):
    """An input section with ``data_processor: BertSumTfRecordsProcessor``.

    It reads records of ``cerebras-tf prepare bertsum``. A batch has `max_cls_tokens` sentences of
    each article.
    """

    max_cls_tokens: int = field(50, minimum=1)


def _builder(**classes):
    return build_variant("data_processor", classes)


build_causal_input = _builder(
    GptTfRecordsProcessor=TokenRecordsInput,
    GptHDF5DataProcessor=TokenRecordsInput,
    GptTextDataProcessor=TextInput,
    ChatDataProcessor=ChatInput,
)
build_glue_input = _builder(GlueTfRecordsProcessor=FineTuningRecordsInput)
build_ner_input = _builder(NerDataProcessor=FineTuningRecordsInput)
build_squad_input = _builder(QuestionAnsweringDataProcessor=FineTuningRecordsInput)
build_bertsum_input = _builder(BertSumTfRecordsProcessor=SentenceRecordsInput)


# ---- the whole YAML


@dataclass(frozen=True, kw_only=True)
class HuggingFaceParams(BaseParams):
    """The whole YAML of a transformers model; tasks derive from it."""

    model: HuggingFaceModelParams
    optimizer: TorchOptimizerParams
    lora: None = None

    PREDICTS_EVAL_INPUT = False
    INHERITED_KEYS: ClassVar[tuple[str, ...]] = (
        "data_processor",
        "vocab_size",
        "max_sequence_length",
        "batch_size",
    )

    @classmethod
    def with_other_files(cls, tree, resolve):
        """Returns `tree` with what its input sections take from the model."""
        model = tree.get("model")
        if not isinstance(model, dict):
            return tree
        folder, config = model.get("pretrained"), model.get("config")
        folder = resolve(folder) if isinstance(folder, str) and folder else None
        facts = {**(read_config(folder) if folder else {}), **(config or {})}
        found = {"vocab_size": facts.get("vocab_size")}
        eos_id = facts.get("eos_token_id")
        of_text = {"tokenizer": folder, "eos_id": eos_id if isinstance(eos_id, int) else None}
        tree = dict(tree)
        for name in ("train_input", "eval_input"):
            section = tree.get(name)
            if not isinstance(section, dict):
                continue
            kind = section.get("data_processor", _kind(tree.get("train_input")))
            taken = {"tokenizer": folder} if kind == "ChatDataProcessor" else found
            if kind == "GptTextDataProcessor":
                taken = {**found, **(of_text if folder else {})}
            known = {key: value for key, value in taken.items() if value is not None}
            tree[name] = {**known, **section}
        return tree

    def problems(self):
        yield from super().problems()
        if self.sparsity:
            yield "sparsity", "has no effect on a transformers model. Remove it."
        if self.csconfig.use_cbfloat16:
            text = "has no effect on a transformers model. Set runconfig.precision: bfloat16."
            yield "csconfig.use_cbfloat16", text
        for each in dataclasses.fields(self.runconfig):
            given = getattr(self.runconfig, each.name)
            known = each.name in RUNCONFIG_KEYS or each.metadata.get("of_cluster")
            known = known or (each.name == "device" and self.runconfig.mode == "predict")
            if not known and given != each.default:
                yield f"runconfig.{each.name}", "has no effect on a transformers model. Remove it."

    @property
    def seed(self):
        """The random seed of the run."""
        return self.runconfig.tf_random_seed or 0


def _kind(section):
    return section.get("data_processor") if isinstance(section, dict) else None


@dataclass(frozen=True, kw_only=True)
class CausalLmParams(HuggingFaceParams):
    """The whole YAML of a language model that predicts the next token."""

    train_input: Any = field(build=build_causal_input)
    eval_input: Any = field(None, build=build_causal_input)
    predict_input: Any = field(None, choices=(None,))

    INHERITED_KEYS = (*HuggingFaceParams.INHERITED_KEYS, *TEXT_KEYS, "chat_template", "packing")

    def problems(self):
        yield from super().problems()
        longest = self.model.facts.get("max_position_embeddings")
        for name, section in self.inputs():
            if isinstance(longest, int) and section.max_sequence_length > longest:
                yield (
                    f"{name}.max_sequence_length",
                    f"must not exceed the {longest} positions of the model.",
                )
            if getattr(section, "data_processor", "") == "ChatDataProcessor":
                if section.tokenizer is None:
                    yield f"{name}.tokenizer", "is required. Set it, or model.pretrained."
            elif section.vocab_size is None:
                yield f"{name}.vocab_size", "is required. Set it, or model.config.vocab_size."


@dataclass(frozen=True, kw_only=True)
class SequenceClassificationParams(HuggingFaceParams):
    """The whole YAML of a classification of sentences and pairs."""

    model: ClassifierModelParams
    train_input: Any = field(build=build_glue_input)
    eval_input: Any = field(None, build=build_glue_input)
    predict_input: Any = field(None, choices=(None,))

    @property
    def label_count(self):
        """Number of labels in the data."""
        return self.model.num_labels


@dataclass(frozen=True, kw_only=True)
class TokenClassificationParams(HuggingFaceParams):
    """The whole YAML of a classification of tokens."""

    model: ClassifierModelParams
    train_input: Any = field(build=build_ner_input)
    eval_input: Any = field(None, build=build_ner_input)
    predict_input: Any = field(None, choices=(None,))


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringParams(HuggingFaceParams):
    """The whole YAML of question answering."""

    train_input: Any = field(build=build_squad_input)
    eval_input: Any = field(None, build=build_squad_input)
    predict_input: Any = field(None, choices=(None,))


@dataclass(frozen=True, kw_only=True)
class SummarizationParams(HuggingFaceParams):
    """The whole YAML of extractive summarization (BERTSUM)."""

    model: SummarizationModelParams
    train_input: Any = field(build=build_bertsum_input)
    eval_input: Any = field(None, build=build_bertsum_input)
    predict_input: Any = field(None, choices=(None,))

    INHERITED_KEYS = (*HuggingFaceParams.INHERITED_KEYS, "max_cls_tokens")


PARAMS = {
    "hf_causal_lm": CausalLmParams,
    "hf_sequence_classification": SequenceClassificationParams,
    "hf_token_classification": TokenClassificationParams,
    "hf_question_answering": QuestionAnsweringParams,
    "hf_extractive_summarization": SummarizationParams,
}
