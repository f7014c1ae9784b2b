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
from modelzoo.common.train import torch_engine
from modelzoo.common.train.torch_engine import LoraSettings, PretrainedModel, load_tensors
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


def sentence_head(encoder):
    """Returns the ExtractiveSummarizer, and its parameters by their names in exported folders."""
    module = ExtractiveSummarizer(encoder)
    added = module.classifier.named_parameters(prefix="classifier")
    return module, {name_in_file(name): parameter for name, parameter in added}


def name_in_file(name):
    """Returns the name of a variable of ExtractiveSummarizer in an exported folder."""
    own = name.startswith("classifier.")
    return f"sentence_{name}" if own else name.removeprefix("encoder.")


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
            base = transformers.AutoConfig.from_pretrained(
                model.pretrained, local_files_only=True, trust_remote_code=False
            )
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


class LoadedModel:
    """The model of params, in float32 and in train mode.

    With `model.pretrained`, parameters have no data: `weights` returns where they are stored. Other
    models have random weights.

    Args:
        meta: whether parameters have no data in any case.

    Attributes:
        module: its `state_dict` has the names of transformers.
        pretrained: PretrainedModel; None without `model.pretrained`.
    """

    def __init__(self, params, meta=False):
        seed = params.model.weight_initialization_seed
        self.pretrained = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(params.seed if seed is None else seed)
            if params.model.pretrained and not meta:
                self.pretrained = _open_folder(params)
                self.module = self.pretrained.module
            else:
                self.module = _make_random(params, meta)

    @property
    def trainee(self):
        """What `cerebras_tf.torch.fit` trains."""
        return self.pretrained or self.module

    def weights(self, checkpoint=None):
        """Returns the regions of files that store the model's weights, by name.

        Args:
            checkpoint: folder whose weights are used where it has them; None for those of
                `model.pretrained`.

        Raises:
            CheckpointError: the checkpoint is that of another model.
        """
        found = {} if self.pretrained is None else self.pretrained.weights()
        if checkpoint is not None:
            found |= torch_engine.checkpoint_regions(checkpoint, self.module)
        return found

    def load(self, checkpoint=None):
        """Reads all weights into the module's tensors; see `weights`."""
        load_tensors(self.module, self.weights(checkpoint))


def make_module(params, meta=False):
    """Builds the model of params with its first weights in its tensors; see LoadedModel."""
    model = LoadedModel(params, meta)
    if not meta:
        model.load()
    return model.module


def _open_folder(params):
    """Opens `model.pretrained` with the head of the task and LoRA."""
    name, model, lora = params.model_name, params.model, params.lora
    make_config(params)  # checks the keys
    keys = {key: value for key, value in (model.config or {}).items() if key != "model_type"}
    if hasattr(model, "num_labels"):
        keys["num_labels"] = model.num_labels
    head = sentence_head if name == "hf_extractive_summarization" else None
    found = PretrainedModel(model.pretrained, CLASSES[name], head, **keys)
    if lora is not None:
        targets = lora.targets if isinstance(lora.targets, str) else tuple(lora.targets)
        found.add_lora(LoraSettings(lora.rank, lora.alpha, lora.dropout, targets))
    return found


def _make_random(params, meta):
    name, config = params.model_name, make_config(params)
    with contextlib.ExitStack() as stack:
        if meta:
            stack.enter_context(torch.device("meta"))
        try:
            module = getattr(transformers, CLASSES[name]).from_config(config, dtype=torch.float32)
        except (ValueError, OSError) as error:
            raise ConfigError(
                f"model: must be one that {CLASSES[name]} of transformers builds. Received: "
                f"{' '.join(str(error).split())[:300]}."
            ) from error
        if name == "hf_extractive_summarization":
            module = ExtractiveSummarizer(module)
    return module.train()


def count_parameters(module, only_trained=False):
    """Returns the number of parameters; tied ones count once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not only_trained)


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
    the loss of an evaluation; for each score ``NAME_sum`` and ``NAME_count``; and what the
    collected scores need, see metrics.py.
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
    sums = _sums(loss=(loss * rows, rows), accuracy=(right, rows))
    return {"loss": loss, "predictions": logits.argmax(-1), **sums}


def token_classification(module, batch, params):
    """The mean cross entropy of the labels of tokens; padding has none."""
    logits = module(**_without(batch, "labels")).logits
    return {"predictions": logits.argmax(-1), **_over_tokens(logits, batch["labels"])}


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
    sums = _sums(loss=(loss * rows, rows), accuracy=(right, weights.sum()))
    return {"loss": loss, "probabilities": logits.sigmoid(), **sums}


def _without(batch, *names):
    return {key: value for key, value in batch.items() if key not in names}


OUTPUTS = {
    "hf_causal_lm": causal_lm,
    "hf_sequence_classification": sequence_classification,
    "hf_token_classification": token_classification,
    "hf_question_answering": question_answering,
    "hf_extractive_summarization": extractive_summarization,
}
