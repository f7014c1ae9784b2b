"""Builds transformers models by their params, and the loss and the scores of each task.

B batch, S sequence length, V vocabulary, C labels or sentences.
"""

import contextlib
import difflib
import inspect

import torch
import torch.nn.functional as F
import transformers
from torch import nn

from cerebras_tf.errors import ConfigError
from modelzoo.hugging_face.chat import IGNORED
from modelzoo.hugging_face.params import read_config

CLASSES = {
    "hf_causal_lm": "AutoModelForCausalLM",
    "hf_sequence_classification": "AutoModelForSequenceClassification",
    "hf_token_classification": "AutoModelForTokenClassification",
    "hf_question_answering": "AutoModelForQuestionAnswering",
    "hf_extractive_summarization": "AutoModel",
}
# Keys of every configuration that do not describe the model, and keys that older folders have.
OTHER_KEYS = {"model_type", "architectures", "rope_theta", "rope_scaling"}


class ExtractiveSummarizer(nn.Module):
    """An encoder with a dense layer on the [CLS] of every sentence (Liu 2019, section 2.2)."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Linear(encoder.config.hidden_size, 1)
        nn.init.normal_(self.classifier.weight, std=encoder.config.initializer_range)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, cls_indices, **tokens):
        """Returns the logit of every sentence, [B, C]."""
        hidden = self.encoder(**tokens).last_hidden_state
        places = cls_indices[:, :, None].expand(-1, -1, hidden.shape[-1])
        return self.classifier(torch.gather(hidden, 1, places))[:, :, 0]


def make_config(params):
    """Makes the configuration of transformers that the section ``model`` describes.

    Raises:
        ConfigError: a key or a value is none of this configuration.
    """
    model = params.model
    keys = dict(model.config or {})
    if model.pretrained:
        read_config(model.pretrained, required=True)
    labels = {"num_labels": model.num_labels} if hasattr(model, "num_labels") else {}
    try:
        if model.pretrained:
            base = transformers.AutoConfig.from_pretrained(model.pretrained, local_files_only=True)
            kind = keys.pop("model_type", base.model_type)
            if kind != base.model_type:
                raise ConfigError(
                    f"model.config.model_type: must be that of {model.pretrained}, "
                    f"{base.model_type}. Received: {kind}. Remove it."
                )
            _check_keys(keys, type(base))
            config = type(base).from_pretrained(
                model.pretrained, local_files_only=True, **keys, **labels
            )
        else:
            kind = keys.pop("model_type")
            if kind not in transformers.models.auto.CONFIG_MAPPING:
                known = list(transformers.models.auto.CONFIG_MAPPING)
                raise ConfigError(
                    "model.config.model_type: must be one of transformers' models, such as llama. "
                    f"Received: {kind!r}. {_nearest(kind, known)}"
                )
            _check_keys(keys, transformers.models.auto.CONFIG_MAPPING[kind])
            config = transformers.AutoConfig.for_model(kind, **keys, **labels)
    except ConfigError:
        raise
    except Exception as error:  # transformers checks values by errors of several classes
        raise ConfigError(
            f"model.config: must be valid for transformers {transformers.__version__}. Received: "
            f"{' '.join(str(error).split())[:300]}. Change it."
        ) from error
    return config


def _check_keys(keys, config_class):
    """Refuses keys that a configuration does not have; transformers would only store them."""
    known = set(config_class().to_dict()) | set(config_class.attribute_map) | OTHER_KEYS
    known |= set(inspect.signature(config_class.__init__).parameters)
    for key in keys:
        if key not in known:
            raise ConfigError(
                f"model.config.{key}: {config_class.__name__} has no such key. Received: "
                f"{keys[key]!r}. {_nearest(key, known)}"
            )


def _nearest(word, known):
    close = difflib.get_close_matches(str(word), known, 1)
    return f"Did you mean {close[0]}?" if close else "Remove it."


def make_module(params, meta=False):
    """Builds the model of params, in float32.

    Args:
        meta: whether tensors have no data, and no weights are read.

    Returns:
        A module in train mode, whose `state_dict` has the names of transformers.
    """
    name, model = params.model_name, params.model
    config = make_config(params)
    auto = getattr(transformers, CLASSES[name])
    seed = model.weight_initialization_seed
    given = {"attn_implementation": "sdpa", "dtype": torch.float32}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(params.seed if seed is None else seed)
        try:
            if meta or not model.pretrained:
                stack.enter_context(torch.device("meta" if meta else "cpu"))
                module = auto.from_config(config, **given)
            else:
                module = auto.from_pretrained(
                    model.pretrained, config=config, local_files_only=True, **given
                )
        except (ValueError, OSError) as error:
            raise ConfigError(
                f"model: must be one that {CLASSES[name]} of transformers builds. Received: "
                f"{' '.join(str(error).split())[:300]}."
            ) from error
        if name == "hf_extractive_summarization":
            module = ExtractiveSummarizer(module)
    return module.train()


def count_parameters(module):
    """Returns the number of parameters; tied ones count once."""
    return sum(parameter.numel() for parameter in module.parameters())


def input_names(module):
    """Returns the arguments of a model that a batch may have; types only if there are several."""
    encoder = module.encoder if isinstance(module, ExtractiveSummarizer) else module
    names = set(inspect.signature(encoder.forward).parameters)
    if getattr(encoder.config, "type_vocab_size", 0) < 2:
        names.discard("token_type_ids")
    return names | {"labels", "cls_indices", "cls_weights"}


def loss_function(params):
    """Returns the loss of a batch as `cerebras_tf.torch.fit` takes it."""
    outputs = OUTPUTS[params.model_name]

    def loss(module, batch):
        return outputs(module, batch, params)["loss"]

    return loss


def score_function(params):
    """Returns a function of a batch: the loss, and sums of scores with their counts.

    The outputs are ``loss``; ``loss_sum`` and ``loss_count``, whose quotient over all batches is
    the loss of an evaluation; and for each score ``NAME_sum`` and ``NAME_count``.
    """
    outputs = OUTPUTS[params.model_name]

    def scores(module, batch):
        return outputs(module, batch, params)

    return scores


def _sums(**scores):
    """Returns scalars [] float32 by name, of pairs of a sum and a count."""
    found = {}
    for name, (total, count) in scores.items():
        found[f"{name}_sum"] = total.float()
        found[f"{name}_count"] = torch.as_tensor(count).float()
    return found


def causal_lm(module, batch, params):
    """The mean cross entropy of the next tokens.

    Labels are next tokens; rows with several documents have ``position_ids``, by which
    transformers confines attention to each document.
    """
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    return _over_tokens(module(**inputs, use_cache=False).logits, batch["labels"])


def sequence_classification(module, batch, params):
    """The mean cross entropy of the classes."""
    logits = module(**_without(batch, "labels")).logits  # (B, C)
    loss = F.cross_entropy(logits.float(), batch["labels"])
    right = (logits.argmax(-1) == batch["labels"]).sum()
    rows = torch.ones_like(batch["labels"]).sum()
    return {"loss": loss, **_sums(loss=(loss * rows, rows), accuracy=(right, rows))}


def token_classification(module, batch, params):
    """The mean cross entropy of the labels of tokens; padding has none."""
    return _over_tokens(module(**_without(batch, "labels")).logits, batch["labels"])


def _over_tokens(logits, labels):
    """The mean cross entropy over tokens with a label; logits are [B, S, C], labels [B, S]."""
    labels = labels.reshape(-1)
    rows = logits.reshape(-1, logits.shape[-1]).float()
    loss = F.cross_entropy(rows, labels, ignore_index=IGNORED)
    count = (labels != IGNORED).sum()
    right = (rows.argmax(-1) == labels).sum()
    return {"loss": loss, **_sums(loss=(loss * count, count), accuracy=(right, count))}


def question_answering(module, batch, params):
    """The mean cross entropy of the first and the last token of the answer."""
    places = [batch["start_positions"], batch["end_positions"]]
    found = module(**_without(batch, "start_positions", "end_positions"))
    logits = [found.start_logits.float(), found.end_logits.float()]  # (B, S)
    loss = sum(F.cross_entropy(x, place) for x, place in zip(logits, places)) / 2
    hits = [x.argmax(-1) == place for x, place in zip(logits, places)]
    rows = torch.ones_like(places[0]).sum()
    scores = {
        "accuracy_start": (hits[0].sum(), rows),
        "accuracy_end": (hits[1].sum(), rows),
        "accuracy_span": ((hits[0] & hits[1]).sum(), rows),
    }
    return {"loss": loss, **_sums(loss=(loss * rows, rows), **scores)}


def extractive_summarization(module, batch, params):
    """The sum of the cross entropies of all sentences, by `loss_weight` and the batch size."""
    labels, weights = batch["labels"].float(), batch["cls_weights"]
    logits = module(**_without(batch, "labels", "cls_weights")).float()  # (B, C)
    costs = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    rows = torch.ones_like(batch["labels"][:, 0]).sum()
    loss = (costs * weights).sum() * params.model.loss_weight / rows
    right = (((logits > 0) == (labels > 0)) * weights).sum()
    return {"loss": loss, **_sums(loss=(loss * rows, rows), accuracy=(right, weights.sum()))}


def _without(batch, *names):
    return {key: value for key, value in batch.items() if key not in names}


OUTPUTS = {
    "hf_causal_lm": causal_lm,
    "hf_sequence_classification": sequence_classification,
    "hf_token_classification": token_classification,
    "hf_question_answering": question_answering,
    "hf_extractive_summarization": extractive_summarization,
}
