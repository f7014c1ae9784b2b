"""Models against Hugging Face's: the same outputs, padding included, and weights that come back."""

from __future__ import annotations

import pytest
import yaml

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")
torch = pytest.importorskip("torch", reason="torch is a test extra")
transformers = pytest.importorskip("transformers", reason="transformers is a test extra")

from modelzoo.common.convert.convert import from_tensorflow, to_tensorflow
from modelzoo.common.convert.tensorflow_checkpoint import TensorFlowReader, write_tensorflow
from modelzoo.common.convert.verify import compare_logits, verify_weights

GPT = {"vocab_size": 61, "n_positions": 24, "n_embd": 32, "n_layer": 3, "n_head": 4}
NO_IDS = {"bos_token_id": None, "eos_token_id": None}
BERT = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
}
NEOX = {**BERT, "hidden_size": 64}
# Outputs of what follows "Bert" or "Roberta" in a class's name.
HEADS = {
    "ForPreTraining": {"logits", "sentence_logits"},
    "ForMaskedLM": {"logits"},
    "ForNextSentencePrediction": {"sentence_logits"},
    "Model": {"hidden", "pooled"},
    "ForSequenceClassification": {"logits"},
    "ForTokenClassification": {"logits"},
    "ForQuestionAnswering": {"starts", "ends"},
}


def write_random(model, folder):
    """Draws the weights of a model of transformers, so large that every one matters; saves it."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        is_gain = parameter.dim() == 1 and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=1.0 if is_gain else 0.0, std=0.3)
    model.save_pretrained(folder)


def check_both_ways(model, folder, back=True):
    """Converts a model to TensorFlow and back, and compares outputs and weights.

    Args:
        model: a model of transformers; its weights are drawn.
        folder: a folder to work in.
        back: whether what comes back must be of the same class and type.

    Returns:
        The names of the outputs that were compared.
    """
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


@pytest.mark.parametrize(
    ("family", "variant"),
    [
        ("GPT2", {}),
        ("GPT2", {"activation_function": "gelu", "n_inner": 40}),  # Cerebras-GPT
        ("GPT2", {"tie_word_embeddings": False}),
        ("GPT2", {"scale_attn_weights": False}),
        ("GPT2", {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
        ("GPTJ", {"rotary_dim": 4, "tie_word_embeddings": False}),
        ("GPTJ", {"rotary_dim": 8, "tie_word_embeddings": True}),
        ("GPTNeoX", {"hidden_act": "gelu"}),
        ("GPTNeoX", {"hidden_act": "gelu_fast"}),
        ("GPTNeoX", {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}}),
        ("GPTNeoX", {"tie_word_embeddings": True}),
        ("GPTNeoX", {"use_parallel_residual": False}),
        ("GPTNeoX", {"attention_bias": False}),
        ("GPTNeoX", {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value))[:30],
)
def test_logits_of_a_gpt_are_those_of_hugging_face_and_weights_come_back(family, variant, tmp_path):
    sizes = NEOX if family == "GPTNeoX" else {**GPT, **NO_IDS}
    config = getattr(transformers, f"{family}Config")(**sizes, **variant)
    model = "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    check_both_ways(getattr(transformers, model)(config), tmp_path)


def test_gpt2_without_its_head_and_in_half_precision_is_read(tmp_path):
    config = transformers.GPT2Config(**{**GPT, "n_layer": 2})
    check_both_ways(transformers.GPT2Model(config).half(), tmp_path, back=False)


@pytest.mark.parametrize(
    ("head", "activation"), [*((head, "gelu") for head in HEADS), ("ForPreTraining", "gelu_new")]
)
def test_outputs_of_bert_are_those_of_hugging_face_and_weights_come_back(
    head, activation, tmp_path
):
    labels = 2 if head == "ForQuestionAnswering" else 5
    config = transformers.BertConfig(**BERT, hidden_act=activation, num_labels=labels)
    assert check_both_ways(getattr(transformers, f"Bert{head}")(config), tmp_path) == HEADS[head]


def test_a_bert_without_pooler_is_compared_by_what_it_has(tmp_path):
    model = transformers.BertModel(transformers.BertConfig(**BERT), add_pooling_layer=False)
    assert check_both_ways(model, tmp_path, back=False) == {"hidden"}


@pytest.mark.parametrize(
    ("head", "activation", "segments", "padding"),
    [
        ("ForMaskedLM", "gelu", 1, 1),
        ("ForMaskedLM", "gelu_new", 2, 0),
        ("Model", "gelu", 1, 3),
        ("ForSequenceClassification", "gelu", 1, 1),
        ("ForTokenClassification", "gelu_new", 1, 1),
        ("ForQuestionAnswering", "gelu", 2, 0),
    ],
)
def test_roberta_counts_positions_after_padding_and_comes_back(
    head, activation, segments, padding, tmp_path
):
    sizes = {**BERT, "max_position_embeddings": 24 + padding + 1}
    labels = 2 if head == "ForQuestionAnswering" else 5
    given = {"type_vocab_size": segments, "pad_token_id": padding, "num_labels": labels}
    config = transformers.RobertaConfig(**sizes, **given, hidden_act=activation)
    model = getattr(transformers, f"Roberta{head}")(config)
    assert check_both_ways(model, tmp_path) == HEADS[head]


def test_our_roberta_becomes_one_of_hugging_face(tmp_path):
    """Ours without segments and rows before position 0 has its zeros there."""
    sizes = {**BERT, "max_position_embeddings": 25}
    theirs = transformers.RobertaConfig(**sizes, type_vocab_size=1, pad_token_id=0)
    write_random(transformers.RobertaForMaskedLM(theirs), tmp_path / "theirs")
    to_tensorflow(tmp_path / "theirs", tmp_path / "whole")
    reader = TensorFlowReader(tmp_path / "whole")
    tensors = {name: reader.read(name) for name in reader.shapes if name != "global_step"}
    del tensors["segment_embedding/segment_embedding_weights"]
    positions = "position_embedding/position_embedding_weights"
    tensors[positions] = tensors[positions][1:]
    tree = yaml.safe_load((tmp_path / "whole" / "params.yaml").read_text())
    tree["model"] |= {"use_segment_embedding": False, "position_embedding_offset": 0}
    ours = tmp_path / "ours"
    ours.mkdir()
    write_tensorflow(ours, "model.ckpt-0", iter(tensors.items()))
    (ours / "params.yaml").write_text(yaml.safe_dump(tree))
    from_tensorflow(ours, tmp_path / "back")
    verify_weights(tmp_path / "back", ours)
    assert compare_logits(tmp_path / "back", ours)["logits"] < 2e-4
