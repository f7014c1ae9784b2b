"""The YAML schema of the encoder-decoder."""

from dataclasses import dataclass
from typing import Any, Optional, Union

from modelzoo.common.config.base_params import BaseParams
from modelzoo.common.config.model_sections import MAX_LAYERS, NONLINEARITIES, StreamKeys
from modelzoo.common.config.sections import build_initializer, build_variant, field

LARGEST_PENALTY = 32.0  # powers of 10^8, more than all lengths, are still finite
BYTE_VOCAB_SIZE = 260  # four special tokens and 256 byte values
INHERITED_KEYS = (
    "data_processor",
    "src_vocab_file",
    "tgt_vocab_file",
    "src_vocab_size",
    "tgt_vocab_size",
    "src_max_sequence_length",
    "tgt_max_sequence_length",
    "tokenizer_file",
    "source_reverse",
    "batch_size",
    "buckets",
)


@dataclass(frozen=True, kw_only=True)
class TransformerModelParams:
    """The section ``model``.

    `share_encoder_decoder_embedding: null` shares the embedding if both vocabularies have the same
    size. The output projection is always tied to the decoder's embedding. `use_vsl` controls
    padding removal: null removes padding if the compiler proves that results do not change, true
    raises an error if the proof fails, and false never removes it.
    """

    hidden_size: int = field(minimum=2)
    encoder_num_hidden_layers: int = field(minimum=1, below=MAX_LAYERS)
    decoder_num_hidden_layers: int = field(minimum=1, below=MAX_LAYERS)
    num_heads: int = field(minimum=1)
    filter_size: int = field(text="Hidden size of the feed-forward layers.", minimum=1)
    share_encoder_decoder_embedding: Optional[bool] = None
    position_embedding_type: str = field("fixed", choices=("fixed", "learned"))
    max_position_embeddings: Optional[int] = field(None, minimum=1)
    encoder_nonlinearity: str = field("relu", choices=NONLINEARITIES)
    decoder_nonlinearity: str = field("relu", choices=NONLINEARITIES)
    dropout_rate: float = field(0.0, minimum=0.0, below=1.0)
    attention_dropout_rate: float = field(0.0, minimum=0.0, below=1.0)
    dropout_seed: Optional[int] = field(None, long=True)
    attention_type: str = field("scaled_dot_product", choices=("scaled_dot_product", "dot_product"))
    attention_softmax_fp32: bool = True
    use_projection_bias_in_attention: bool = field(False, choices=(False,))
    use_ffn_bias_in_attention: bool = field(False, choices=(False,))
    use_ffn_bias: bool = True
    use_pre_normalization: bool = False
    layer_norm_epsilon: float = field(1.0e-8, minimum=0.0)
    embedding_initializer: Any = field(None, build=build_initializer)
    attention_initializer: Any = field(None, build=build_initializer)
    feed_forward_initializer: Any = field(None, build=build_initializer)
    weight_initialization_seed: Optional[int] = field(None, long=True)
    label_smoothing: float = field(0.0, minimum=0.0)
    mixed_precision: bool = False
    boundary_casting: bool = field(False, choices=(False,))
    tf_summary: bool = False
    precision_opt_level: int = field(0, choices=(0,))
    use_vsl: Optional[bool] = field(
        None,
        "Whether padding is removed. null: if the compiler proves equal results. true: "
        "raises an error if the proof fails. false: never.",
    )

    def problems(self):
        if self.hidden_size % self.num_heads:
            yield "num_heads", f"must divide hidden_size ({self.hidden_size})."
        if self.hidden_size % 2 and self.position_embedding_type == "fixed":
            yield "hidden_size", "must be even with position_embedding_type fixed."
        if self.label_smoothing >= 1:
            yield "label_smoothing", "must be below 1."


def longest_sequence(section):
    """Returns the larger of an input section's two longest lengths."""
    return max(section.src_max_sequence_length, section.tgt_max_sequence_length)


@dataclass(frozen=True, kw_only=True)
class PairInput(StreamKeys):
    """The keys of every input section with sentence pairs.

    Pairs of similar length are batched together, and padded to the first of the `buckets`
    (ascending lengths) that is longer than both sides, or to the last. A number makes that many
    buckets of equal steps. Prediction is a beam search with `beam_size` hypotheses, at most
    `extra_length` tokens longer than the source, scored with `length_penalty` (the values of
    Vaswani et al. 2017, section 6.1).

    The pairs are in memory and shuffled as a whole: `shuffle_buffer` and `n_parallel_reads` have no
    effect. With `use_multiple_workers` each worker trains on a part of them.
    """

    data_processor: str
    src_max_sequence_length: int = field(minimum=1)
    tgt_max_sequence_length: int = field(minimum=2)
    batch_size: int = field(text="Batch size of one wafer.", minimum=1)
    source_reverse: bool = field(False, "Whether to reverse source sentences.")
    buckets: Union[int, list[int]] = field(
        1, "Lengths that batches are padded to, or their number."
    )
    beam_size: int = field(4, "Number of beams. 1: greedy decoding.", minimum=1)
    length_penalty: float = field(
        0.6, "Exponent of the length penalty.", minimum=0.0, below=LARGEST_PENALTY
    )
    extra_length: int = field(50, "Maximum number of tokens beyond the source's length.", minimum=0)

    def problems(self):
        longest = longest_sequence(self)
        if isinstance(self.buckets, int):
            if not 1 <= self.buckets <= longest:
                yield "buckets", f"must be from 1 to {longest}, or a list of lengths."
        elif list(self.buckets) != sorted(set(self.buckets)) or not self.buckets:
            yield "buckets", "must ascend."
        elif self.buckets[-1] != longest:
            yield "buckets", f"must end at the longest sequence length, {longest}."

    @property
    def bucket_lengths(self):
        """The lengths that batches are padded to, ascending."""
        if not isinstance(self.buckets, int):
            return tuple(self.buckets)
        longest = longest_sequence(self)
        return tuple(-(-longest * (i + 1) // self.buckets) for i in range(self.buckets))


@dataclass(frozen=True, kw_only=True)
class TransformerTextInput(PairInput):
    """An input section with ``data_processor: TransformerDynamicDataProcessor``.

    `src_data_dir` and `tgt_data_dir` are files, or lists of files, with one sentence in each line.
    With a `tokenizer_file` (a tokenizer.json) the lines are plain text. Otherwise their tokens are
    separated by spaces, and the vocabulary files have one token in each line. Prediction needs no
    target.
    """

    src_data_dir: Union[str, list[str], None] = field(None, path=True)
    tgt_data_dir: Union[str, list[str], None] = field(None, path=True)
    tokenizer_file: Optional[str] = field(None, path=True)
    src_vocab_file: Optional[str] = field(None, path=True)
    tgt_vocab_file: Optional[str] = field(None, path=True)
    src_vocab_size: Optional[int] = field(None, minimum=5)
    tgt_vocab_size: Optional[int] = field(None, minimum=5)

    def problems(self):
        yield from super().problems()
        if self.src_data_dir is None:
            yield "src_data_dir", "is required. Add it to the section."
        vocabularies = (self.src_vocab_file, self.tgt_vocab_file)
        if (self.tokenizer_file is None) == (None in vocabularies):
            yield "tokenizer_file", "or src_vocab_file and tgt_vocab_file must be set."


@dataclass(frozen=True, kw_only=True)
class TransformerRecordsInput(PairInput):
    """An input section with ``data_processor: TransformerTfRecordsProcessor``."""

    src_vocab_size: int = field(minimum=5)
    tgt_vocab_size: int = field(minimum=5)
    data_dir: Union[str, list[str], None] = field(None, path=True)

    def problems(self):
        yield from super().problems()
        if self.data_dir is None:
            yield "data_dir", "is required. Add it to the section."


@dataclass(frozen=True, kw_only=True)
class IdentifierInput(PairInput):
    """An input section with ``data_processor: IdentifierDataProcessor``.

    The pairs are names of two words from the bundled text, as ``snake_case`` and as ``CamelCase``,
    byte by byte. The fraction `eval_fraction` of the names, selected by a hash, is for evaluation.
    """

    eval_fraction: float = field(0.05, minimum=0.0)
    src_vocab_size: int = field(BYTE_VOCAB_SIZE, choices=(BYTE_VOCAB_SIZE,))
    tgt_vocab_size: int = field(BYTE_VOCAB_SIZE, choices=(BYTE_VOCAB_SIZE,))

    def problems(self):
        yield from super().problems()
        if not 0 < self.eval_fraction < 1:
            yield "eval_fraction", "must be above 0 and below 1."


build_pair_input = build_variant(
    "data_processor",
    {
        "TransformerDynamicDataProcessor": TransformerTextInput,
        "TransformerTfRecordsProcessor": TransformerRecordsInput,
        "IdentifierDataProcessor": IdentifierInput,
    },
)


@dataclass(frozen=True, kw_only=True)
class Params(BaseParams):
    """The whole YAML of an encoder-decoder."""

    model: TransformerModelParams
    train_input: Any = field(build=build_pair_input)
    eval_input: Any = field(None, build=build_pair_input)
    predict_input: Any = field(None, build=build_pair_input)

    INHERITED_KEYS = INHERITED_KEYS

    @classmethod
    def with_defaults(cls, tree):
        """Returns `tree` with the keys that input sections inherit.

        Sources to predict do not inherit the targets of evaluation.
        """
        given = tree.get("predict_input")
        if isinstance(given, dict) and "src_data_dir" in given:
            tree = {**tree, "predict_input": {"tgt_data_dir": None, **given}}
        return super().with_defaults(tree)

    def problems(self):
        yield from super().problems()
        sizes = (self.train_input.src_vocab_size, self.train_input.tgt_vocab_size)
        if self.model.share_encoder_decoder_embedding and sizes[0] != sizes[1]:
            yield (
                "model.share_encoder_decoder_embedding",
                f"requires vocabularies of the same size (they are {sizes[0]} and {sizes[1]}).",
            )
        for name, section in self.inputs():
            if longest_sequence(section) > self.max_position_embeddings:
                yield (
                    f"{name}.src_max_sequence_length",
                    f"and tgt_max_sequence_length must not exceed the "
                    f"{self.max_position_embeddings} positions of the model.",
                )

    @property
    def max_position_embeddings(self):
        """Number of positions of each side: the given one, else the longest in training."""
        return self.model.max_position_embeddings or longest_sequence(self.train_input)
