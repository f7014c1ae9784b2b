"""What the sections ``model`` and ``*_input`` of all transformers share."""

from dataclasses import dataclass
from typing import Any, Optional, Union

from cerebras_tf.errors import ConfigError
from cerebras_tf.user_files import open_regular
from modelzoo.common.config.sections import build_initializer, field
from modelzoo.common.files import text_lines
from modelzoo.common.files.path_advice import unread

NONLINEARITIES = ("gelu", "gelu_exact", "relu", "tanh")
MAX_LAYERS = 10_001  # graphs of as many take hours to build


@dataclass(frozen=True, kw_only=True)
class CommonModelParams:
    """Keys that every encoder and every decoder has.

    `use_vsl` controls padding removal (variable sequence length). null removes padding if the
    compiler proves that results do not change, true raises an error if the proof fails, and false
    never removes it. Padding of causal models that is given only by the loss weights needs true.
    """

    hidden_size: int = field(minimum=1)
    num_hidden_layers: int = field(minimum=1, below=MAX_LAYERS)
    num_heads: int = field(minimum=1)
    filter_size: int = field(text="Hidden size of the feed-forward layers.", minimum=1)
    max_position_embeddings: Optional[int] = field(
        None, "Number of positions. null: the sequence length of training.", minimum=1
    )
    embedding_size: Optional[int] = field(
        None, "Size of the token embedding. null: hidden_size.", minimum=1
    )
    share_embedding_weights: bool = field(
        True, "Whether the output projection is tied to the embedding."
    )
    nonlinearity: str = field("gelu", choices=NONLINEARITIES)
    dropout_rate: float = field(0.0, minimum=0.0, below=1.0)
    attention_dropout_rate: float = field(0.0, minimum=0.0, below=1.0)
    dropout_seed: Optional[int] = field(None, long=True)
    layer_norm_epsilon: float = field(1.0e-8, minimum=0.0)
    attention_softmax_fp32: bool = field(
        True, "Whether the softmax of attention is computed in float32."
    )
    initializer: Any = field(None, build=build_initializer)
    embedding_initializer: Any = field(None, build=build_initializer)
    weight_initialization_seed: Optional[int] = field(
        None, "Random seed of the initial weights.", long=True
    )
    mixed_precision: bool = field(
        False, "Whether the graph computes in float16, with float32 weights."
    )
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


@dataclass(frozen=True)
class SequenceInput:
    """The keys without a default of input sections that need no folder of records."""

    data_processor: str
    max_sequence_length: int = field(minimum=1)
    batch_size: int = field(text="Batch size of one wafer.", minimum=1)


@dataclass(frozen=True)
class RecordInput:
    """The keys of every input section that reads TFRecords of a folder."""

    data_processor: str
    data_dir: Union[str, list[str]] = field(text="Folder or folders of the data.", path=True)
    max_sequence_length: int = field(minimum=1)
    batch_size: int = field(text="Batch size of one wafer.", minimum=1)


@dataclass(frozen=True, kw_only=True)
class OrderKeys:
    """How examples are ordered and repeated; evaluation reads them once in any case."""

    shuffle: bool = True
    shuffle_seed: Optional[int] = field(0, "Random seed of the order.", minimum=0, long=True)
    repeat: bool = field(True, "Whether training repeats its data.")
    skip_steps: Optional[int] = field(
        None,
        "Number of steps to skip at the beginning of the data. null: those of earlier runs.",
        minimum=0,
    )


@dataclass(frozen=True, kw_only=True)
class StreamKeys(OrderKeys):
    """How records are ordered, repeated and read."""

    shuffle_buffer: Optional[int] = field(
        None, "Number of records to shuffle. null: 10 batches.", minimum=1
    )
    n_parallel_reads: int = field(4, "Number of files to read at the same time.", minimum=1)
    use_multiple_workers: bool = field(
        False, "Whether each worker of TF_CONFIG reads its own files."
    )


def count_vocabulary(section):
    """Returns the number of tokens of an input section: vocab_size, else vocab_file's lines."""
    return section.vocab_size or count_lines(getattr(section, "vocab_file", None))


def count_lines(path):
    """Returns the number of lines of a file, None if there is none."""
    try:
        with open_regular(path or ""):
            pass
    except OSError as error:
        if unread(error) is ConfigError:
            raise ConfigError(
                f"vocab_file: must be a readable file. Received: {path!r} ({error.strerror}). "
                "Check the path."
            ) from error
        return None
    return text_lines.line_ends(path, 1 << 20)[0]
