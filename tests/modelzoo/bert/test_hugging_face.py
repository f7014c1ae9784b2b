"""BERT against Hugging Face's: the same outputs, padding and all, and weights that come back."""

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
from tests.modelzoo.hugging_face import check_both_ways, write_random

OUTPUTS = {
    "BertForPreTraining": {"logits", "sentence_logits"},
    "BertForMaskedLM": {"logits"},
    "BertForNextSentencePrediction": {"sentence_logits"},
    "BertModel": {"hidden", "pooled"},
    "BertForSequenceClassification": {"logits"},
    "BertForTokenClassification": {"logits"},
    "BertForQuestionAnswering": {"starts", "ends"},
}
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
@pytest.mark.parametrize("architecture", OUTPUTS)
def test_outputs_are_those_of_hugging_face_and_weights_come_back(
    architecture, activation, tmp_path
):
    config = transformers.BertConfig(
        **SIZES,
        max_position_embeddings=24,
        hidden_act=activation,
        num_labels=2 if architecture == "BertForQuestionAnswering" else 5,
    )
    outputs = check_both_ways(getattr(transformers, architecture)(config), tmp_path)
    assert outputs == OUTPUTS[architecture]


def test_a_bert_without_pooler_is_compared_by_what_it_has(tmp_path):
    config = transformers.BertConfig(**SIZES, max_position_embeddings=24)
    model = transformers.BertModel(config, add_pooling_layer=False)
    assert check_both_ways(model, tmp_path, back=False) == {"hidden"}


@pytest.mark.parametrize(
    "architecture, outputs, activation, segments, padding",
    [
        ("RobertaForMaskedLM", {"logits"}, "gelu", 1, 1),
        ("RobertaForMaskedLM", {"logits"}, "gelu_new", 2, 0),
        ("RobertaModel", {"hidden", "pooled"}, "gelu", 1, 3),
        ("RobertaForSequenceClassification", {"logits"}, "gelu", 1, 1),
        ("RobertaForTokenClassification", {"logits"}, "gelu_new", 1, 1),
        ("RobertaForQuestionAnswering", {"starts", "ends"}, "gelu", 2, 0),
    ],
)
def test_roberta_counts_positions_after_padding_and_comes_back(
    architecture, outputs, activation, segments, padding, tmp_path
):
    config = transformers.RobertaConfig(
        **SIZES,
        max_position_embeddings=24 + padding + 1,
        type_vocab_size=segments,
        pad_token_id=padding,
        hidden_act=activation,
        num_labels=2 if architecture == "RobertaForQuestionAnswering" else 5,
    )
    assert check_both_ways(getattr(transformers, architecture)(config), tmp_path) == outputs


def test_our_roberta_becomes_one_of_hugging_face(tmp_path):
    """Ours without segments and rows before position 0 has its zeros there."""
    theirs = transformers.RobertaConfig(
        **SIZES, max_position_embeddings=25, type_vocab_size=1, pad_token_id=0
    )
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
