"""Counts what a config's run trains on and computes, from its YAML alone. Holds no tests."""

from __future__ import annotations


def tokens(params):
    """Returns the tokens of all steps, padding included: steps x global batch x sequence."""
    section = params.train_input
    return params.runconfig.max_steps * params.global_batch_size * section.max_sequence_length


def flops(params):
    """Returns the floating-point operations of all steps.

    Counted as by Hoffmann et al. (2022, appendix F): the products of a forward pass, embedding and
    full attention included, a softmax as 3 operations an element, three times, for the backward
    pass is two. Not counted is a gradient of the embedding's input, which nobody needs: so Dey et
    al. (2023) must have counted, whose figures are met to four digits.
    """
    model, section = params.model, params.train_input
    length = section.max_sequence_length
    vocab_size = getattr(params, "vocab_size", section.vocab_size)
    size, heads = model.hidden_size, model.num_heads
    embedding = 2 * length * vocab_size * size
    block = 8 * length * size**2 + 4 * length * size * model.filter_size
    block += 4 * length**2 * size + 3 * heads * length**2
    forward = embedding + model.num_hidden_layers * block
    forward += _bert_heads(params) if params.model_name == "bert" else embedding
    sequences = tokens(params) // length
    return (3 * forward - embedding) * sequences


def _bert_heads(params):
    model, size = params.model, params.model.hidden_size
    words = params.train_input.max_predictions_per_seq * (size**2 + size * params.vocab_size)
    sentences = 0 if model.disable_nsp else size**2 + size * model.num_cls_classes
    return 2 * (words + sentences)


def short(number):
    """Writes a large number with three digits, such as 2.63e10."""
    digits, exponent = f"{number:.2e}".split("e")
    return f"{digits}e{int(exponent)}"


def cells(params, parameters):
    """Returns the last cells of a config's row: parameters, global batch, tokens and FLOP."""
    batch = params.global_batch_size
    return [f"{parameters:,}", f"{batch:,}", short(tokens(params)), short(flops(params))]
