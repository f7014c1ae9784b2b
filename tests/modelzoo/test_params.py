"""What the params files of the models may hold, and what is refused. Imports no TensorFlow.

Keys and kinds of values that all models have are tested in common/config/test_params.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebras_tf.config.schema import as_tree
from cerebras_tf.errors import ConfigError
from cerebras_tf.memoryx.sparsifier import SPARSIFIER_MAP
from modelzoo.common.config.params import load_params, params_from_dict
from modelzoo.transformer.params import Params as TransformerParams
from tests.messages import raises

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
GPT, GPTJ, NEOX, BERT = "gpt3_tiny", "gptj_tiny", "gpt_neox_tiny", "bert_tiny"
SST2, SQUAD = "bert_small_sst2", "bert_small_squad"
TRANSLATE, WMT, MULTI30K = "transformer_tiny", "transformer_base", "transformer_small_multi30k"


def load(config, changes=()):
    """Loads a config with keys replaced; None removes one."""
    given = {key: value for key, value in dict(changes).items() if value is not None}
    removed = [(key, "null") for key, value in dict(changes).items() if value is None]
    return load_params(str(CONFIGS / f"params_{config}.yaml"), given, settings=removed)


def of(section, *rows):
    """Rows of (config, one change, facts) for keys of a section."""
    return [(config, {f"{section}.{key}": value}, facts) for config, key, value, facts in rows]


@pytest.mark.parametrize(
    ("config", "changes", "facts"),
    [
        *of(
            "model",
            (GPTJ, "rotary_dim", 3, ("rotary_dim", "Received: 3")),
            (GPTJ, "rotary_dim", 10**3, ("rotary_dim", "Received: 1000")),
            (GPTJ, "num_heads", 64, ("num_heads",)),  # of odd size
            (GPTJ, "embedding_size", 8, ("embedding_size", "Received: 8")),
            (GPTJ, "initializer", [{"name": "constant"}] * 2, ("initializer",)),
            (GPTJ, "use_parallel_residual", False, ("use_untied_layer_norm",)),
            (NEOX, "rotary_emb_base", 0.0, ("rotary_emb_base", "0.0")),
            (TRANSLATE, "num_heads", 5, ("hidden_size", "num_heads", "Received: 5")),
            (TRANSLATE, "label_smoothing", 1.0, ("label_smoothing", "Received: 1.0")),
            (TRANSLATE, "max_position_embeddings", 20, ("20 positions",)),
            (TRANSLATE, "use_projection_bias_in_attention", True, ("use_projection_bias",)),
            (SST2, "max_position_embeddings", 16, ("max_sequence_length", "16 positions")),
            (SQUAD, "num_segments", 2, ("mark_question_words", "num_segments: 3")),
        ),
        *of(
            "train_input",
            (TRANSLATE, "buckets", [8, 20], ("buckets", "24")),
            (TRANSLATE, "buckets", [16, 8, 24], ("buckets", "ascend")),
            (TRANSLATE, "src_vocab_size", 300, ("src_vocab_size", "260")),
            (WMT, "tgt_vocab_size", 36000, ("37000", "36000")),
            (SST2, "buckets", [16, 8], ("buckets", "ascend")),
            (SST2, "buckets", [8, 512], ("buckets", "max_sequence_length")),
            (SST2, "vocab_file", None, ("vocab_file",)),
            (SST2, "labels", ["0", "1", "2"], ("num_cls_classes", "labels")),
            (SST2, "data_processor", "TsvDataProcessor", ("text_columns", "TsvData")),
            (SST2, "text_columns", ["a", "b", "c"], ("text_columns",)),
            (SST2, "text_columns", ["a", "a"], ("text_columns", "different")),
            (SST2, "max_sequence_length", 2, ("max_sequence_length", "Received: 2")),
            (BERT, "max_predictions_per_seq", 999, ("max_predictions_per_seq", "max_sequence_le")),
            (BERT, "masked_lm_prob", 1.0, ("masked_lm_prob", "Received: 1.0")),
        ),
        (
            SST2,
            {"train_input.text_columns": ["a", "b"], "train_input.max_sequence_length": 4},
            ("5",),
        ),
        *of("eval_input", (SQUAD, "mark_question_words", False, ("mark_question_words", "train"))),
        (SST2, {"predict_input": {"data_processor": "GlueTfRecordsProcessor"}}, ("GlueTfRec",)),
        *(
            (GPT, {"predict_input": {"data_processor": "GptPromptsProcessor", **keys}}, facts)
            for keys, facts in (
                ({}, ("prompt_file",)),
                ({"prompt_file": "a", "top_p": 0.0}, ("top_p", "Received: 0.0")),
                ({"prompt_file": "a", "temperature": -1}, ("temperature", "Received: -1")),
                ({"prompt_file": "a", "temperature": 1e-310}, ("temperature", "1.2e-38")),
                ({"prompt_file": "a", "temperature": 0, "num_samples": 2}, ("num_samples",)),
                ({"prompt_file": "a", "temperature": 0, "top_k": 5}, ("top_k", "temperature 0")),
                ({"prompt_file": "a", "top_k": 1, "top_p": 0.5}, ("top_p",)),
                ({"prompt_file": "a", "repetition_penalty": 1e-310}, ("repetition_penalty",)),
                ({"prompt_file": "a", "max_sequence_length": 10**4}, ("positions",)),
                ({"prompt_file": "a", "vocab_size": 300}, ("vocab_size", "train_input")),
                ({"prompt_file": "a", "tokenizer_type": "Word"}, ("tokenizer_type", "'Word'")),
            )
        ),
        *(
            (GPT, {"sparsity": {"mask_type": "topk", **keys}}, facts)
            for keys, facts in (
                ({"mask_type": "set"}, ("sparsity.mask_type", "balanced-topk")),
                ({"sparsity_level": 1}, ("sparsity_level",)),
                ({"sparsity_level": {"a": 2}}, ("sparsity_level.a",)),
                ({"sparsity_level": {}}, ("sparsity_level",)),
                ({"sparsity_level": {"a": 0.5}, "sparsity_distribution": "er"}, ("er",)),
            )
        ),
        (GPT, {"sparsity": {"mask_type": "topk"}, "runconfig.device": "/cpu:0"}, ("sparsity",)),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_cannot_be_is_refused(config, changes, facts):
    with raises(ConfigError, *facts):
        load(config, changes)


def test_an_initializer_may_be_a_list_of_one():
    one = {"name": "truncated_normal", "stddev": 0.5}
    model = load(GPTJ, {"model.initializer": [one], "model.embedding_initializer": one}).model
    assert model.initializer == model.embedding_initializer


def test_evaluation_and_prediction_read_as_training_does():
    small = load(MULTI30K)
    for section in (small.eval_input, small.predict_input):
        assert section.tokenizer_file == small.train_input.tokenizer_file
        assert section.bucket_lengths == (12, 15, 19, 24, 32, 48)
        assert not section.shuffle and not section.repeat
    assert small.eval_input.batch_size == 128 and small.predict_input.batch_size == 50
    tuned = load(SST2, {"train_input.buckets": [8], "train_input.do_lower": False})
    for section in (tuned.eval_input, tuned.predict_input):
        assert section.buckets == (8,) and not section.do_lower
        assert not section.shuffle and not section.repeat
    assert params_from_dict(type(tuned), as_tree(tuned)) == tuned
    marked = load(SQUAD)
    assert marked.eval_input.mark_question_words and marked.predict_input.mark_question_words


def test_sources_to_predict_do_not_take_over_the_targets_of_evaluation():
    text = {
        "data_processor": "TransformerDynamicDataProcessor",
        "src_data_dir": "val.s",
        "tgt_data_dir": "val.t",
        "tokenizer_file": "tokenizer.json",
    }
    given = {"train_input": text, "eval_input": text}
    lengths = dict.fromkeys(("src_max_sequence_length", "tgt_max_sequence_length"), 8)
    for section in ({}, {"src_data_dir": "test.s"}, {"src_data_dir": "a", "tgt_data_dir": "b"}):
        tree = {**given, "predict_input": {**lengths, **section}}
        made = TransformerParams.with_defaults(tree)["predict_input"]
        assert made["tgt_data_dir"] == (section.get("tgt_data_dir") if section else "val.t")


def test_a_number_of_buckets_makes_equal_steps():
    section = load(TRANSLATE, {"train_input.buckets": 3}).train_input
    assert section.bucket_lengths == (8, 16, 24)


@pytest.mark.parametrize("name", sorted(SPARSIFIER_MAP))
def test_a_section_gives_the_sparsifier_of_its_name(name):
    given = {"mask_type": name, "sparsity_level": "0.75", "n_iter": 5, "seed": 3}
    made = load(GPT, {"sparsity": given}).sparsity.sparsifier()
    assert type(made) is SPARSIFIER_MAP[name]
    assert (made.sparsity_level, made.n_iter, made.seed) == (0.75, 5, 3)


def test_levels_of_sparsity_by_names_and_distributions():
    def made(**keys):
        return load(GPT, {"sparsity": {"mask_type": "topk", **keys}}).sparsity.sparsifier()

    by_name = made(sparsity_level={"ffn": 0.9})
    assert by_name.get_sparsity_levels({"a/ffn": (4, 4), "b": (4, 4)}) == {"a/ffn": 0.9}
    erk = made(sparsity_distribution="erk", erk_power_scale=0)
    assert erk.get_sparsity_levels({"a": (4, 9)}) == {"a": 0.5}
    assert load(GPT).sparsity is None
