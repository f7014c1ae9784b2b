"""What the tests of every model against Hugging Face's have in common."""

from __future__ import annotations

from modelzoo.common.convert.convert import from_tensorflow, to_tensorflow
from modelzoo.common.convert.verify import compare_logits, verify_weights


def write_random(model, folder):
    """Draws the weights of a model of transformers anew, so large that every one matters; saves."""
    import torch

    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        is_gain = parameter.dim() == 1 and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=1.0 if is_gain else 0.0, std=0.3)
    model.save_pretrained(folder)


def check_both_ways(model, folder, back=True):
    """Converts a model to TensorFlow and back, and compares outputs and weights.

    Args:
        model: a model of transformers; its weights are drawn anew.
        folder: a folder to work in.
        back: whether what comes back must be of the same class and type.

    Returns:
        The names of the outputs that were compared.
    """
    import torch

    write_random(model, folder / "theirs")
    to_tensorflow(folder / "theirs", folder / "ours")
    verify_weights(folder / "theirs", folder / "ours")
    largest = compare_logits(folder / "theirs", folder / "ours")
    assert max(largest.values()) < 2e-4
    from_tensorflow(folder / "ours", folder / "back", max_shard_bytes=20_000)
    if back:
        found = type(model).from_pretrained(folder / "back").state_dict()
        expected = model.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    return set(largest)
