"""The YAML sections that all fine-tunings share, and the defaults taken from the pre-training."""

from dataclasses import dataclass
from typing import ClassVar, Optional

from cerebras_tf.errors import ConfigError
from modelzoo.bert.input_sections import VocabularyKeys
from modelzoo.bert.params import BertModelParams, BertParams
from modelzoo.common.config.model_sections import StreamKeys, count_vocabulary
from modelzoo.common.config.params import load_params
from modelzoo.common.config.sections import as_tree, field


@dataclass(frozen=True, kw_only=True)
class FineTuningModelParams(BertModelParams):
    """The section ``model`` of a fine-tuning: BERT's keys and `pretrain_params_path`.

    `pretrain_params_path` is the params file of the pre-training. Missing keys of this section,
    except `use_vsl`, are taken from its section ``model``, and so are the vocabulary size and the
    number of positions, so that its checkpoint fits.
    """

    pretrain_params_path: Optional[str] = field(None, "Params file of the pre-training.", path=True)


@dataclass(frozen=True, kw_only=True)
class FineTuningInputKeys(StreamKeys, VocabularyKeys):
    """The optional keys of every input section of a fine-tuning.

    `buckets`: sequence lengths, ascending. A batch is padded to the smallest one above its longest
    example, or to max_sequence_length. The model is compiled once for each length.
    """

    buckets: Optional[list[int]] = field(
        None, "Lengths that batches are padded to. null: max_sequence_length."
    )
    disable_eval_metrics: bool = field(False, "Whether evaluation reports only the loss.")

    def problems(self):
        yield from super().problems()
        buckets, longest = self.buckets or (), vars(self)["max_sequence_length"]
        inside = all(1 <= bound <= longest for bound in buckets)
        if not inside or list(buckets) != sorted(set(buckets)):
            yield "buckets", f"must be ascending and at most max_sequence_length ({longest})."


@dataclass(frozen=True, kw_only=True)
class FineTuningParams(BertParams):
    """The whole YAML of a fine-tuning.

    A task derives its `Params` and declares its own sections: `model`, a FineTuningModelParams, and
    input sections with FineTuningInputKeys and `max_sequence_length`.
    """

    model: FineTuningModelParams

    INHERITED_KEYS: ClassVar[tuple[str, ...]] = (
        "data_processor",
        "vocab_size",
        "vocab_file",
        "max_sequence_length",
        "batch_size",
        "buckets",
    )

    @classmethod
    def with_other_files(cls, tree, resolve):
        """Returns `tree` with the keys that it takes from model.pretrain_params_path."""
        model, train_input = tree.get("model"), tree.get("train_input")
        path = model.get("pretrain_params_path") if isinstance(model, dict) else None
        if not isinstance(path, str) or not isinstance(train_input, dict):
            return tree
        if set(BertModelParams.__dataclass_fields__) <= set(model):
            return tree  # as saved by a run: no key is missing
        pretraining = load_params(resolve(path))
        if not isinstance(pretraining.model, BertModelParams):
            raise ConfigError(
                f"{path}: model.pretrain_params_path must be the params file of a BERT "
                f"pre-training. Received: model_name {pretraining.model_name!r}. Use another file."
            )
        taken = as_tree(pretraining.model)
        taken["max_position_embeddings"] = pretraining.max_position_embeddings
        del taken["use_vsl"]
        if train_input.get("vocab_size") is None:
            train_input = {**train_input, "vocab_size": pretraining.vocab_size}
        return {**tree, "model": {**taken, **model}, "train_input": train_input}

    def problems(self):
        yield from super().problems()
        longest, vocab_size = self.max_position_embeddings, self.vocab_size
        for name, section in self.inputs():
            if section.max_sequence_length > longest:
                text = f"must not exceed the {longest} positions of the model."
                yield f"{name}.max_sequence_length", text
            if count_vocabulary(section) != vocab_size:
                yield f"{name}.vocab_size", f"must equal train_input.vocab_size ({vocab_size})."
