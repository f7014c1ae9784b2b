"""The YAML schema of transformers models. It imports neither PyTorch nor transformers."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Optional, Union

from cerebras_tf.errors import ConfigError
from cerebras_tf.user_files import read_json, reason
from modelzoo.common.config.base_params import BaseParams
from modelzoo.common.config.input_sections import TEXT_KEYS, GptPromptsInput, GptTextDataInput
from modelzoo.common.config.model_sections import OrderKeys, RecordInput, SequenceInput
from modelzoo.common.config.sections import (
    OptimizerParams,
    build_section,
    build_variant,
    field,
    taking,
)
from modelzoo.common.fine_tuning import article_encoding, glue_files, question_encoding
from modelzoo.common.fine_tuning.encoding import settings_of
from modelzoo.common.tokenizers.tokenizer_files import lower_cases

CONFIG = "config.json"
# The keys of runconfig that training by the PyTorch engine reads.
RUNCONFIG_KEYS = (
    "mode",
    "model_dir",
    "max_steps",
    "steps",
    "eval_steps",
    "predict_steps",
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
    "credentials_path",
    "loggers",
    "profile",
    "validate_only",
    "compile_only",
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
        return read_json(path, dict)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder}: model.pretrained must be a folder of a transformers model, with {CONFIG}. "
            f"Received: {reason(error)}. Use a folder that save_pretrained wrote."
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


# ---- LoRA and export


@dataclass(frozen=True, kw_only=True)
class LoraParams:
    """The section ``lora``: small additions are trained, and the weights of the folder are frozen.

    `targets` is `all-linear`, all linear layers but the output layer, or a list of names of layers
    or ends of names, such as `[q_proj, v_proj]`. A layer that the folder lacks, such as a new
    classifier, is trained as a whole.
    """

    rank: int = field(8, "Rank of the additions.", minimum=1)
    alpha: float = field(16.0, "The additions are multiplied by alpha / rank.", above=0.0)
    dropout: float = field(
        0.0, "Probability that an input of an addition is dropped.", minimum=0.0, below=1.0
    )
    targets: Union[str, list[str]] = field("all-linear", "Layers with an addition.")


@dataclass(frozen=True, kw_only=True)
class ExportParams:
    """The section ``export``: what is written to ``model_dir/export`` when training ends.

    It is a folder that transformers opens: config.json, weights and the tokenizer. With the section
    ``lora`` it is an adapter that peft opens, unless `merge_lora` is True. `cerebras-tf convert
    export` writes the same from any checkpoint.
    """

    at_end: bool = field(True, "Whether it is written when training ends.")
    dtype: Optional[str] = field(
        None,
        "Type of the weights. null: those of model.pretrained, else float32.",
        choices=(None, "float32", "float16", "bfloat16"),
    )
    merge_lora: bool = field(False, "Whether LoRA is added to the weights.")
    max_shard_gb: float = field(5.0, "Maximum size of a file, GB.", above=0.0)


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
    assistant's turns, with the token that ends a turn, or that of the completion; a message may
    have ``"weight": 0`` to leave it out. With `packing`
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
class PairRecordsInput(FineTuningRecordsInput):
    """An input section with ``data_processor: GlueTfRecordsProcessor``.

    It reads records of ``cerebras-tf prepare glue``.
    """

    has_parts: bool = field(
        False, "Whether evaluation also scores the matched and the mismatched set of MNLI."
    )


@dataclass(frozen=True, kw_only=True)
class TaggedRecordsInput(FineTuningRecordsInput):
    """An input section with ``data_processor: NerDataProcessor``.

    It reads records of ``cerebras-tf prepare ner``. `text_file` is the .tsv file that the records
    of prediction were made from; prediction then also writes its words with their tags.
    """

    label_vocab_file: Optional[str] = field(
        None, "label2id.json of the records; evaluation then scores entities.", path=True
    )
    text_file: Optional[str] = field(None, "Text of the records of prediction.", path=True)

    def problems(self):
        if self.text_file is not None and self.label_vocab_file is None:
            yield "label_vocab_file", "is required with text_file. Set it to label2id.json."


@dataclass(frozen=True, kw_only=True)
class SentenceRecordsInput(FineTuningRecordsInput):
    """An input section with ``data_processor: BertSumTfRecordsProcessor``.

    It reads records of ``cerebras-tf prepare bertsum``. A batch has `max_cls_tokens` sentences of
    each article. Evaluation scores summaries of the `top_k` most probable sentences, or with null
    of all sentences with a probability of at least 0.5.
    """

    max_cls_tokens: int = field(50, "Maximum number of sentences.", minimum=1)
    max_highlight_tokens: int = field(192, "Tokens of a true summary in the records.", minimum=1)
    sep_id: int = field(102, "Id of the token [SEP].", minimum=0)
    top_k: Optional[int] = field(None, "Number of sentences of a summary.", minimum=1)


# ---- sections of prediction


@dataclass(frozen=True)
class PromptsInput(GptPromptsInput):
    """A section predict_input with ``data_processor: GptPromptsProcessor``: prompts to complete.

    The keys are those of GPT-2. The tokenizer is that of the model.
    """

    def problems(self):
        yield from super().problems()
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.name in TOKENIZER_KEYS and value != each.default:
                yield each.name, "has no effect on a transformers model. Remove it."


TOKENIZER_KEYS = ("tokenizer_type", "vocab_file", "encoder_file", "eos_id")


@dataclass(frozen=True, kw_only=True)
class TextFileKeys(OrderKeys):
    """Keys of sections that encode text with WordPiece, as ``cerebras-tf prepare`` does."""

    vocab_size: Optional[int] = field(None, "null: that of the model.", minimum=1)
    vocab_file: Optional[str] = field(None, "vocab.txt. null: that of model.pretrained.", path=True)

    def problems(self):
        if self.vocab_file is None:
            yield "vocab_file", "is required. Set it to the vocab.txt of the model."


@dataclass(frozen=True, kw_only=True)
class PairTextInput(TextFileKeys, RecordInput):
    """A section predict_input that reads tab-separated files.

    `data_dir` is a folder with the files of GLUE, a file, or a list of files. The data processor
    determines columns and labels. With TsvDataProcessor, set `text_columns` (one or two),
    `label_column` and `labels`.
    """

    do_lower: bool = field(True, "Whether text is lower-cased.")
    text_columns: Optional[list[str]] = field(None, "Columns of the texts.")
    label_column: Optional[str] = field(None, "Column of the label.")
    labels: Optional[list[str]] = field(None, "Labels in the order of their numbers.")

    def problems(self):
        yield from super().problems()
        for name, fault in self.task.faults(self.max_sequence_length):
            yield {"length": "max_sequence_length"}.get(name, name), fault

    @property
    def task(self):
        """The processor's task, with the columns and labels that the section gives."""
        return glue_files.TASKS.get(self.data_processor, glue_files.OTHER_FILES).with_overrides(
            self.text_columns, self.label_column, self.labels
        )


@dataclass(frozen=True, kw_only=True)
class QuestionTextInput(TextFileKeys, SequenceInput):
    """A section predict_input that reads `predict_file`, a JSON file of SQuAD.

    Its keys are those of `bert.fine_tuning.question_answering`.
    """

    predict_file: str = field(text="JSON file of SQuAD.", path=True)
    data_dir: Union[str, list[str], None] = field(None, "Not read by prediction.", path=True)
    articles: Optional[list[int]] = field(None, "First article, from 0, and end. null: all.")
    do_lower_case: bool = field(False, "Whether text is lower-cased.")
    doc_stride: int = field(128, "Tokens between the starts of two windows.", minimum=1)
    max_query_length: int = field(64, "Maximum tokens of a question.", minimum=1)
    n_best_size: int = field(20, "Number of answers that are written.", minimum=1)
    max_answer_length: int = field(30, "Maximum tokens of an answer.", minimum=1)
    version_2_with_negative: bool = field(False, "Whether questions may have no answer.")
    null_score_diff_threshold: float = field(0.0, "Score above which there is no answer.")
    answer_by: str = field(
        "probability", "How an answer is chosen.", choices=("probability", "expected_f1")
    )

    def problems(self):
        yield from super().problems()
        first, last = (*(self.articles or ()), 0, 1)[:2]
        if (self.articles is not None and len(self.articles) != 2) or not 0 <= first < last:
            yield "articles", "must be two ascending numbers, such as [0, 10]."

    @property
    def encoding(self):
        """How text becomes windows."""
        given = {"max_seq_length": self.max_sequence_length}
        return settings_of(question_encoding.EncodingSettings, self, **given)


@dataclass(frozen=True, kw_only=True)
class ArticleTextInput(TextFileKeys, SequenceInput):
    """A section predict_input that reads articles from `predict_file` (.jsonl, .story or .bin).

    Its keys are those of `bert.fine_tuning.extractive_summarization`.
    """

    predict_file: str = field(text="File of articles, or folder.", path=True)
    data_dir: Union[str, list[str], None] = field(None, "Not read by prediction.", path=True)
    max_cls_tokens: int = field(50, "Maximum number of sentences.", minimum=1)
    top_k: Optional[int] = field(None, "Number of sentences of a summary.", minimum=1)
    max_highlight_tokens: int = field(192, "Not read by prediction.", minimum=1)
    sep_id: int = field(102, "Not read by prediction.", minimum=0)
    do_lower_case: bool = field(False, "Whether text is lower-cased.")
    max_sentences_per_sequence: int = field(100, "Maximum number of sentences.", minimum=1)
    min_tokens_per_sentence: int = field(5, "Shorter sentences are left out.", minimum=1)
    max_tokens_per_sentence: int = field(200, "Longer sentences are truncated.", minimum=1)

    @property
    def encoding(self):
        """How articles are encoded."""
        return settings_of(article_encoding.EncodingSettings, self)


def _builder(**classes):
    return build_variant("data_processor", classes)


build_causal_input = _builder(
    GptTfRecordsProcessor=TokenRecordsInput,
    GptHDF5DataProcessor=TokenRecordsInput,
    GptTextDataProcessor=TextInput,
    ChatDataProcessor=ChatInput,
)
build_glue_input = _builder(GlueTfRecordsProcessor=PairRecordsInput)
build_glue_texts = _builder(**dict.fromkeys((*glue_files.TASKS, "TsvDataProcessor"), PairTextInput))
build_ner_input = _builder(NerDataProcessor=TaggedRecordsInput)
build_squad_input = _builder(QuestionAnsweringDataProcessor=FineTuningRecordsInput)
build_squad_texts = _builder(QuestionAnsweringDataProcessor=QuestionTextInput)
build_bertsum_input = _builder(BertSumTfRecordsProcessor=SentenceRecordsInput)
build_bertsum_texts = _builder(BertSumTfRecordsProcessor=ArticleTextInput)


# ---- the whole YAML


@dataclass(frozen=True, kw_only=True)
class HuggingFaceParams(BaseParams):
    """The whole YAML of a transformers model; tasks derive from it."""

    model: HuggingFaceModelParams
    optimizer: TorchOptimizerParams
    lora: Any = field(None, build=build_section(LoraParams))
    export: ExportParams = ExportParams()

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
        texts = tree.get("predict_input")
        if isinstance(texts, dict) and folder and Path(folder, "vocab.txt").exists():
            kind = texts.get("data_processor", _kind(tree.get("train_input")))
            known = {"vocab_file": str(Path(folder, "vocab.txt"))} if kind in TEXT_FILES else {}
            lower = lower_cases(folder)
            if known and lower is not None:
                of_pairs = kind in build_glue_texts.classes
                known["do_lower" if of_pairs else "do_lower_case"] = lower
            tree["predict_input"] = {**known, **texts}
        return tree

    def problems(self):
        yield from super().problems()
        if self.sparsity:
            yield "sparsity", "has no effect on a transformers model. Remove it."
        if self.lora is None and self.export.merge_lora:
            yield "export.merge_lora", "has no effect without the section lora. Remove it."
        if self.lora is not None and self.model.pretrained is None:
            yield "lora", "requires model.pretrained. Set it, or remove the section."
        if self.lora is not None and self.export.dtype and not self.export.merge_lora:
            yield "export.dtype", "has no effect on an adapter, which is float32. Remove it."
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


# Data processors of predict_input that read text.
TEXT_FILES = (*glue_files.TASKS, "TsvDataProcessor", "QuestionAnsweringDataProcessor")
TEXT_FILES += ("BertSumTfRecordsProcessor",)


def _kind(section):
    return section.get("data_processor") if isinstance(section, dict) else None


@dataclass(frozen=True, kw_only=True)
class CausalLmParams(HuggingFaceParams):
    """The whole YAML of a language model that predicts the next token."""

    train_input: Any = field(build=build_causal_input)
    eval_input: Any = field(None, build=build_causal_input)
    predict_input: Any = field(None, build=_builder(GptPromptsProcessor=PromptsInput))

    INHERITED_KEYS = (*HuggingFaceParams.INHERITED_KEYS, *TEXT_KEYS, "chat_template", "packing")

    def problems(self):
        yield from super().problems()
        longest = self.model.facts.get("max_position_embeddings")
        for name, section in self.inputs():
            if isinstance(longest, int) and (section.max_sequence_length or 0) > longest:
                yield (
                    f"{name}.max_sequence_length",
                    f"must not exceed the {longest} positions of the model.",
                )
            if getattr(section, "data_processor", "") == "ChatDataProcessor":
                if section.tokenizer is None:
                    yield f"{name}.tokenizer", "is required. Set it, or model.pretrained."
            elif section.vocab_size is None and name != "predict_input":
                yield f"{name}.vocab_size", "is required. Set it, or model.config.vocab_size."


@dataclass(frozen=True, kw_only=True)
class SequenceClassificationParams(HuggingFaceParams):
    """The whole YAML of a classification of sentences and pairs."""

    model: ClassifierModelParams
    train_input: Any = field(build=build_glue_input)
    eval_input: Any = field(None, build=build_glue_input)
    predict_input: Any = field(None, build=build_glue_texts)

    INHERITED_KEYS = (*HuggingFaceParams.INHERITED_KEYS, "has_parts")

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
    predict_input: Any = field(None, build=build_ner_input)

    INHERITED_KEYS = (*HuggingFaceParams.INHERITED_KEYS, "label_vocab_file")

    @property
    def label_count(self):
        """Number of labels in the data."""
        return self.model.num_labels


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringParams(HuggingFaceParams):
    """The whole YAML of question answering."""

    train_input: Any = field(build=build_squad_input)
    eval_input: Any = field(None, build=build_squad_input)
    predict_input: Any = field(None, build=build_squad_texts)


@dataclass(frozen=True, kw_only=True)
class SummarizationParams(HuggingFaceParams):
    """The whole YAML of extractive summarization (BERTSUM)."""

    model: SummarizationModelParams
    train_input: Any = field(build=build_bertsum_input)
    eval_input: Any = field(None, build=build_bertsum_input)
    predict_input: Any = field(None, build=build_bertsum_texts)

    def problems(self):
        yield from super().problems()
        if self.lora is not None and not self.export.merge_lora:
            yield "export.merge_lora", "must be True, because peft has no class for this model."

    INHERITED_KEYS = (
        *HuggingFaceParams.INHERITED_KEYS,
        *("max_cls_tokens", "max_highlight_tokens", "sep_id", "top_k"),
    )


PARAMS = {
    "hf_causal_lm": CausalLmParams,
    "hf_sequence_classification": SequenceClassificationParams,
    "hf_token_classification": TokenClassificationParams,
    "hf_question_answering": QuestionAnsweringParams,
    "hf_extractive_summarization": SummarizationParams,
}
