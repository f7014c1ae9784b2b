"""Models of other programs become ours and come back bit for bit, or are refused by key."""

from __future__ import annotations

import json
import types

import numpy as np
import pytest
import yaml

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

from cerebras_tf.errors import CheckpointError, ConfigError
from modelzoo.common.config.params import load_params
from modelzoo.common.convert import bert
from modelzoo.common.convert.convert import from_tensorflow, to_tensorflow
from modelzoo.common.convert.gpt import rotary_share
from modelzoo.common.convert.hugging_face import HuggingFaceReader
from modelzoo.common.convert.tensorflow_checkpoint import (
    TensorFlowReader,
    renumber,
    write_tensorflow,
)
from modelzoo.common.convert.verify import verify_weights
from modelzoo.common.fine_tuning.tag_labels import read_label_names
from modelzoo.common.model_dir.source_files import TOKENIZER
from modelzoo.common.train import run
from tests.messages import names, raises
from tests.modelzoo.common.convert.models import (
    BERT_SIZES,
    CASES,
    change_config,
    layout_of,
    params_of,
    random_tensors,
    write_model,
)
from tests.reading import assert_same


def read_all(reader):
    return {name: reader.read(name) for name in reader.shapes}


@pytest.mark.parametrize("name", CASES)
def test_model_and_configuration_come_back_bit_for_bit(tmp_path, name):
    tensors = write_model(tmp_path / "theirs", name)
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    number = sum(array.size for array in tensors.values())
    assert verify_weights(tmp_path / "theirs", tmp_path / "ours") == number
    done = from_tensorflow(tmp_path / "ours", tmp_path / "back", max_shard_bytes=500)
    assert done.weights == number
    back = HuggingFaceReader(tmp_path / "back")
    assert_same(read_all(back), tensors)
    config = CASES[name][1]
    assert {key: back.config[key] for key in config} == config
    to_tensorflow(tmp_path / "back", tmp_path / "again")
    first, again = ((tmp_path / k / "params.yaml").read_text() for k in ("ours", "again"))
    assert first == again.replace(str(tmp_path / "again"), str(tmp_path / "ours"))


def test_what_a_replaced_checkpoint_was_trained_on_goes_with_it(tmp_path):
    write_model(tmp_path / "theirs", "gpt2")
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    (tmp_path / "ours/trained_on.json").write_text("{}")
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours", overwrite=True)
    assert not (tmp_path / "ours/trained_on.json").exists()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_weights_come_back_bit_for_bit(tmp_path, dtype):
    write_model(tmp_path / "wide", "gpt_neox")
    to_tensorflow(tmp_path / "wide", tmp_path / "ours")
    from_tensorflow(tmp_path / "ours", tmp_path / "narrow", dtype=dtype)
    to_tensorflow(tmp_path / "narrow", tmp_path / "again")
    from_tensorflow(tmp_path / "again", tmp_path / "back", dtype=dtype)
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (
        tmp_path / "narrow" / "model.safetensors"
    ).read_bytes()


def test_params_of_the_checkpoint_load_strictly_and_hold_the_sizes(tmp_path):
    write_model(tmp_path / "theirs", "gpt2", activation_function="gelu")
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    params = load_params(tmp_path / "ours" / "params.yaml")
    assert params.model_name == "gpt3"
    assert (params.model.hidden_size, params.model.filter_size) == (8, 12)
    assert (params.train_input.vocab_size, params.train_input.max_sequence_length) == (13, 7)
    assert params.model.nonlinearity == "gelu_exact"  # plain gelu is the error function's there


@pytest.mark.parametrize(
    "names, architecture",
    [
        (("cls.seq_relationship", "bert.pooler"), "BertForMaskedLM"),
        (("cls.",), "BertModel"),
        (("none",), "BertForPreTraining"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bert_with_any_head_comes_back(tmp_path, names, architecture):
    tensors = write_model(tmp_path / "theirs", "bert", leave_out=names)
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    assert load_params(tmp_path / "ours/params.yaml").model.disable_nsp == (names != ("none",))
    from_tensorflow(tmp_path / "ours", tmp_path / "back")
    back = HuggingFaceReader(tmp_path / "back")
    assert_same(read_all(back), tensors)
    assert back.config["architectures"] == [architecture]


def test_token_ids_and_generation_come_back_from_the_checkpoints_folder(tmp_path):
    ids = {"bos_token_id": 3, "eos_token_id": [4, 5], "pad_token_id": 6, "task": {"a": 1}}
    write_model(tmp_path / "theirs", "gpt_neox", **ids)
    generation = '{"max_length": 7,\n "temperature": 0.5}'
    (tmp_path / "theirs" / "generation_config.json").write_text(generation)
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    from_tensorflow(tmp_path / "ours", tmp_path / "back")
    back = HuggingFaceReader(tmp_path / "back").config
    assert {key: back[key] for key in ids} == ids
    assert (tmp_path / "back" / "generation_config.json").read_text() == generation


def write_tokenizer(folder, *names):
    """Writes files that no one shall read as text; returns their content by name."""
    content = {name: f"{name} of {folder.name}".encode() + b"\xff\x00" for name in names}
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return content


def test_the_tokenizer_goes_with_a_model_and_comes_back(tmp_path):
    theirs, back = tmp_path / "theirs", tmp_path / "back"
    write_model(theirs, "gpt_neox")
    content = write_tokenizer(theirs, *TOKENIZER)
    write_tokenizer(theirs, "README.md", "sp10m.spm", "vocab.bpe")
    assert to_tensorflow(theirs, tmp_path / "ours").left == ("README.md", "sp10m.spm", "vocab.bpe")
    assert from_tensorflow(tmp_path / "ours", back).left == ()
    for folder in (tmp_path / "ours", back):
        assert {name: (folder / name).read_bytes() for name in TOKENIZER} == content
        assert not list(folder.glob("*.spm")) and not (folder / "README.md").exists()


WORDS = [*"abcdefghijkl", "A"]  # the last is only among the added tokens


@pytest.mark.parametrize(
    ("config", "normalizer", "lower"),
    [({"do_lower_case": False}, True, False), ({}, False, False), ({}, True, True)],
)
@pytest.mark.parametrize(
    ("name", "key"), [("bert_classifier", "do_lower"), ("bert_question_answering", "do_lower_case")]
)
def test_a_fine_tuned_bert_lower_cases_as_its_tokenizer(
    tmp_path, name, key, config, normalizer, lower
):
    """A vocab.txt is made of a tokenizer.json, the only file that transformers 5 writes."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    write_model(theirs, name)
    (theirs / "tokenizer_config.json").write_text(json.dumps(config))
    words = {word: number for number, word in enumerate(WORDS[:-1])}
    tokenizer = {
        "normalizer": {"type": "BertNormalizer", "lowercase": normalizer},
        "added_tokens": [{"id": 0, "content": "a"}, {"id": 12, "content": "A"}],
        "model": {"type": "WordPiece", "vocab": words},
    }
    (theirs / "tokenizer.json").write_text(json.dumps(tokenizer))
    to_tensorflow(theirs, ours)
    section = load_params(ours / "params.yaml").train_input
    assert getattr(section, key) is lower
    assert section.vocab_file == str(ours / "vocab.txt")
    assert (ours / "vocab.txt").read_text().split() == WORDS
    change_config(theirs, bos_token_id=None)
    to_tensorflow(theirs, ours, overwrite=True)
    assert from_tensorflow(ours, tmp_path / "back").missing == ()


def test_a_tokenizer_is_replaced_whole_and_stays_where_none_comes(tmp_path):
    write_model(tmp_path / "theirs", "gpt2")
    content = write_tokenizer(tmp_path / "theirs", "tokenizer.json")
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    (tmp_path / "back").mkdir()
    write_tokenizer(tmp_path / "back", "vocab.json", "merges.txt")
    with raises(CheckpointError, "Received: merges.txt"):
        from_tensorflow(tmp_path / "ours", tmp_path / "back")
    from_tensorflow(tmp_path / "ours", tmp_path / "back", overwrite=True)
    found = {path.name for path in (tmp_path / "back").iterdir()}
    assert found & set(TOKENIZER) == {"tokenizer.json"}
    (tmp_path / "ours" / "tokenizer.json").unlink()
    from_tensorflow(tmp_path / "ours", tmp_path / "back", overwrite=True)
    assert (tmp_path / "back" / "tokenizer.json").read_bytes() == content["tokenizer.json"]


def test_token_ids_come_from_the_folder_that_is_named(tmp_path):
    """As after a training, whose folder does not hold them."""
    write_model(tmp_path / "theirs", "gpt2", eos_token_id=4, rope_theta=3.0, torch_dtype="x")
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    (tmp_path / "ours" / "config.json").unlink()
    from_tensorflow(tmp_path / "ours", tmp_path / "none")
    assert HuggingFaceReader(tmp_path / "none").config["eos_token_id"] is None
    from_tensorflow(tmp_path / "ours", tmp_path / "back", config_from=tmp_path / "theirs")
    back = HuggingFaceReader(tmp_path / "back").config
    assert (back["eos_token_id"], back["torch_dtype"]) == (4, "float32")
    assert "rope_theta" not in back
    write_model(tmp_path / "other", "bert")
    with raises(ConfigError, "config.json", "'gpt2'", "Received: 'bert'"):
        from_tensorflow(tmp_path / "ours", tmp_path / "no", config_from=tmp_path / "other")


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Returns a function that trains one step from a checkpoint of ``ours`` in another folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("gpt2", "gpt_neox"):
        architecture, config = CASES[name]
        case = architecture, {**config, "vocab_size": 257}
        monkeypatch.setitem(CASES, f"{name}_bytes", case)
    (tmp_path / "a.txt").write_text("to be or not to be " * 9)

    def call(out, *options):
        tree = yaml.safe_load((tmp_path / "ours" / "params.yaml").read_text())
        section = {"data_processor": "GptTextDataProcessor", "data_dir": "a.txt"}
        section["tokenizer"] = None  # the written one is no tokenizer
        tree["train_input"] |= {**section, "eval_fraction": 0.0}
        tree["eval_input"] |= section
        tree["runconfig"] |= {"keep_best_checkpoint": {}, "eval_steps": 1}
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(tree))
        place = ("--device", "/cpu:0", "--steps", "1")
        run.main(["-m", "train_and_eval", "-p", "params.yaml", "-o", out, *options, *place])

    return call


def test_what_a_model_came_with_is_in_all_models_that_are_trained_from_it(tmp_path, train):
    ids = {"bos_token_id": 256, "eos_token_id": 256, "pad_token_id": 255}
    write_model(tmp_path / "theirs", "gpt_neox_bytes", **ids)
    content = write_tokenizer(tmp_path / "theirs", *TOKENIZER, "generation_config.json")
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    train("first", "--checkpoint_path", "ours")
    train("second", "--resume_from", "first")
    renumber(tmp_path / "second", tmp_path / "third", 7)
    for name in ("ours", "first"):  # as in a run of an earlier version, and a moved folder
        (tmp_path / name).rename(tmp_path / f"moved_{name}")
    for name in ("moved_first", "moved_first/best", "second", "third"):
        params = tmp_path / "params.yaml"
        done = from_tensorflow(
            tmp_path / name, tmp_path / "back", params_path=params, overwrite=True
        )
        back = HuggingFaceReader(tmp_path / "back").config
        assert {key: back[key] for key in ids} == ids and not done.missing
        assert {each: (tmp_path / "back" / each).read_bytes() for each in content} == content


def test_files_that_training_did_not_copy_are_found_by_its_params_file(tmp_path, train):
    write_model(tmp_path / "theirs", "gpt2_bytes", eos_token_id=256)
    write_tokenizer(tmp_path / "theirs", "vocab.json")
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    train("first", "--checkpoint_path", "ours/model.ckpt-0")
    for name in ("config.json", "vocab.json"):
        (tmp_path / "first" / name).unlink()
    done = from_tensorflow(tmp_path / "first", tmp_path / "back")
    assert HuggingFaceReader(tmp_path / "back").config["eos_token_id"] == 256
    assert names(done.missing, f"generation_config.json in {tmp_path / 'ours'}")
    (tmp_path / "ours").rename(tmp_path / "moved")
    done = from_tensorflow(tmp_path / "first", tmp_path / "gone")
    assert names(done.missing, "eos_token_id None", "generation_config.json", "tokenizer", "first")


def test_names_of_labels_go_with_a_classifier(tmp_path, monkeypatch):
    write_model(tmp_path / "theirs", "bert_classifier")
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    section = load_params(tmp_path / "ours" / "params.yaml").train_input
    assert section.task.labels == ("no", "perhaps", "yes")
    write_model(tmp_path / "tags", "bert_token_classifier")
    to_tensorflow(tmp_path / "tags", tmp_path / "tagger")
    (tmp_path / "label2id.json").write_text('{"other": 0}')
    monkeypatch.chdir(tmp_path)  # whose file is another one
    section = load_params(tmp_path / "tagger" / "params.yaml").train_input
    assert read_label_names(section.label_vocab_file) == ["no", "perhaps", "yes"]
    (tmp_path / "tagger").rename(tmp_path / "moved")
    done = from_tensorflow(tmp_path / "moved", tmp_path / "back")
    back = HuggingFaceReader(tmp_path / "back").config
    assert list(back["label2id"]) == ["no", "perhaps", "yes"]
    assert "LABEL_2" not in str(done.missing)
    (tmp_path / "moved").rename(tmp_path / "tagger")
    (tmp_path / "tagger" / "label2id.json").unlink()
    done = from_tensorflow(tmp_path / "tagger", tmp_path / "back", overwrite=True)
    assert names(done.missing, "labels", "LABEL_2")
    back = HuggingFaceReader(tmp_path / "back").config
    assert back["label2id"] == {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("head", ["classifier", "token_classifier", "question_answering"])
def test_head_is_found_by_its_class_or_its_tensors(tmp_path, family, head):
    name = f"{family}_{head}"
    tensors = write_model(tmp_path / "theirs", name)
    root = f"{family}.pooler.dense"
    pooler = {f"{root}.weight": (8, 8), f"{root}.bias": (8,)}
    extra = {k: np.ones(v, np.float32) for k, v in pooler.items() if k not in tensors}
    architecture = CASES[name][0]
    write_model(tmp_path / "old", name, extra=extra, architectures=[*architecture.classes])
    for folder, dropped in ("theirs", ()), ("old", tuple(sorted(extra))):
        done = to_tensorflow(tmp_path / folder, tmp_path / folder / "ours")
        params = load_params(tmp_path / folder / "ours" / "params.yaml")
        assert (params.model_name, done.dropped) == (architecture.model_name, dropped)


def test_share_of_a_head_that_turns_is_read_there_as_it_was_meant():
    for head_size in range(2, 130, 2):
        for rotary_dim in range(2, head_size + 1, 2):
            model = types.SimpleNamespace(head_size=head_size, rotary_dim=rotary_dim)
            assert int(head_size * rotary_share(model)) == rotary_dim


def test_names_of_old_files_buffers_and_tied_copies_are_understood(tmp_path):
    tensors = write_model(tmp_path / "theirs", "gpt2")
    old = {name.replace("transformer.", ""): array for name, array in tensors.items()}
    extra = {
        **old,
        "lm_head.weight": tensors["transformer.wte.weight"],
        "h.0.attn.bias": np.ones((1, 1, 7, 7), np.float32),
        "h.1.attn.masked_bias": np.ones(1, np.float32),
    }
    write_model(tmp_path / "old", "gpt2", leave_out="transformer.", extra=extra)
    done = to_tensorflow(tmp_path / "old", tmp_path / "ours")
    assert done.dropped == ("h.0.attn.bias", "h.1.attn.masked_bias")
    from_tensorflow(tmp_path / "ours", tmp_path / "back")
    assert_same(read_all(HuggingFaceReader(tmp_path / "back")), tensors)


def test_missing_unexpected_and_misshapen_tensors_are_listed_together(tmp_path):
    other = {"lm_head.weight": np.ones((13, 8), np.float32)}  # no copy of the embedding
    write_model(tmp_path, "gpt2", extra=other)
    with raises(CheckpointError, "lm_head.weight", "transformer.wte.weight"):
        to_tensorflow(tmp_path, tmp_path / "ours")
    extra = {"transformer.h.9.ln_1.bias": np.ones(2, np.float32)}
    write_model(tmp_path, "gpt2", leave_out="transformer.ln_f.bias", extra=extra)
    change_config(tmp_path, vocab_size=14)
    missing, more = "config.json: tensor transformer.ln_f.bias", "tensor transformer.h.9.ln_1.bias"
    shapes = ("transformer.wte.weight", "[14, 8]", "Received: [13, 8]")
    with raises(CheckpointError, missing, f"model.safetensors: {more}", *shapes):
        to_tensorflow(tmp_path, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("name", "changes", "fact"),
    [
        ("gpt2", {"model_type": "opt"}, "gpt2, gptj, gpt_neox, bert, roberta"),
        ("gpt2", {"architectures": ["GPT2ForSequenceClassification"]}, "GPT2LMHeadModel"),
        ("bert", {"architectures": ["BertForMultipleChoice"]}, "BertForMultipleChoice"),
        ("gpt2", {"activation_function": "silu"}, "activation_function"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("gpt_neox", {"rotary_pct": 0.32}, "rotary_dim"),
        ("gpt_neox", {"rope_scaling": {"type": "linear"}}, "rope_type"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"hidden_size": None}, "hidden_size"),
        ("roberta", {"type_vocab_size": 4}, "num_segments"),
        ("bert_classifier", {"id2label": {"0": "height"}}, "num_cls_classes"),
        ("bert_classifier", {"problem_type": "multi_label_classification"}, "problem_type"),
        ("bert_question_answering", {"num_labels": 3}, "labels"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_configuration_without_a_counterpart_is_refused_by_its_key(tmp_path, name, changes, fact):
    write_model(tmp_path, name)
    change_config(tmp_path, **changes)
    with raises(ConfigError, "config.json: ", fact):
        to_tensorflow(tmp_path, tmp_path / "ours")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2", {"use_pre_normalization": False}),
        ("gpt2", {"use_ffn_bias": False}),
        ("gptj", {"use_bias_in_output": False}),
        ("gpt_neox", {"use_ffn_bias_in_attention": False}),
        ("bert", {"use_segment_embedding": False}),
        ("bert_classifier", {"nsp_nonlinearity": "relu"}),
        ("roberta", {"mlm_nonlinearity": "gelu"}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_parameters_without_a_counterpart_are_refused_by_their_key(tmp_path, name, changes):
    write_model(tmp_path / "theirs", name)
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    path = tmp_path / "ours" / "params.yaml"
    tree = yaml.safe_load(path.read_text())
    tree["model"].update(changes)
    path.write_text(yaml.safe_dump(tree))
    with raises(ConfigError, f"params.yaml: model.{next(iter(changes))} "):
        from_tensorflow(tmp_path / "ours", tmp_path / "back")
    if name == "gpt2":
        with raises(ConfigError, "model_name", "bert", "Received: 'gpt3'"):
            from_tensorflow(tmp_path / "ours", tmp_path / "back", "google_bert")


def write_ours(folder, extra=None, leave_out=None, step=0):
    """A checkpoint as training leaves it."""
    links = layout_of("gpt2").links
    shapes = {k: shape for link in links for k, shape in link.our_shapes.items()}
    tensors = random_tensors({**shapes, **(extra or {})})
    tensors.pop(leave_out, None)
    folder.mkdir()
    write_tensorflow(folder, f"model.ckpt-{step}", iter(tensors.items()), step)


SLOTS = {
    "post_decoder_layer_norm/post_decoder_layer_norm/gamma/AdamW": (8,),
    "post_decoder_layer_norm/post_decoder_layer_norm/gamma/AdamW_1": (8,),
    "input_embedding/embedding_weights_grad_accum_0": (13, 8),
    "beta1_power": (),
    "current_loss_scale": (),
    "cerebras_tf/random_step": (),
}


def test_state_of_the_optimizer_is_left_out(tmp_path):
    write_model(tmp_path / "theirs", "gpt2")
    to_tensorflow(tmp_path / "theirs", tmp_path / "converted")
    write_ours(tmp_path / "ours", SLOTS, step=300)
    done = from_tensorflow(
        tmp_path / "ours", tmp_path / "back", params_path=tmp_path / "converted" / "params.yaml"
    )
    assert set(done.dropped) == set(SLOTS)
    links = layout_of("gpt2").links
    assert HuggingFaceReader(tmp_path / "back").shapes == {k.theirs: k.shape for k in links}


def test_missing_and_unexpected_variables_are_refused(tmp_path):
    write_model(tmp_path / "theirs", "gpt2")
    to_tensorflow(tmp_path / "theirs", tmp_path / "converted")
    name = "post_decoder_layer_norm/post_decoder_layer_norm/beta"
    write_ours(tmp_path / "ours", {"other/kernel": (2,)}, leave_out=name)
    params = tmp_path / "converted" / "params.yaml"
    with raises(CheckpointError, f"model.ckpt-0: tensor {name}", "tensor other/kernel"):
        from_tensorflow(tmp_path / "ours", tmp_path / "back", params_path=params)


def write_google_bert(folder):
    folder.mkdir()
    shapes = {k.theirs: k.shape for k in bert.google_layout(params_of("bert")).links}
    tensors = random_tensors({**shapes, "bert/pooler/dense/bias/adam_m": (8,)})
    write_tensorflow(folder, "bert_model.ckpt", iter(tensors.items()), 1000)
    (folder / "checkpoint").unlink()
    config = {**BERT_SIZES, "hidden_act": "gelu", "layer_norm_eps": 1e-12}
    (folder / "bert_config.json").write_text(json.dumps(config))
    return {name: tensors[name] for name in shapes}, config


def test_googles_bert_comes_back_bit_for_bit_with_its_step(tmp_path):
    tensors, config = write_google_bert(tmp_path / "theirs")
    done = to_tensorflow(tmp_path / "theirs", tmp_path / "ours", "google_bert")
    assert done.path.endswith("model.ckpt-1000")
    assert done.dropped == ("bert/pooler/dense/bias/adam_m",)
    ours = TensorFlowReader(tmp_path / "ours")
    head = ours.read("cls_layer/cls_output_dense/cls_output_dense/kernel")
    np.testing.assert_array_equal(head, tensors["cls/seq_relationship/output_weights"].T)
    from_tensorflow(tmp_path / "ours", tmp_path / "back", "google_bert")
    back = TensorFlowReader(tmp_path / "back" / "bert_model.ckpt")
    assert back.global_step == 1000
    found = read_all(back)
    del found["global_step"]
    assert_same(found, tensors)
    written = json.loads((tmp_path / "back" / "bert_config.json").read_text())
    assert {key: written[key] for key in config} == config


def test_googles_bert_goes_to_hugging_face_through_ours(tmp_path):
    tensors, _ = write_google_bert(tmp_path / "google")
    with raises(CheckpointError, "bert_config.json", "--program google_bert"):
        to_tensorflow(tmp_path / "google", tmp_path / "ours", "hugging_face")
    to_tensorflow(tmp_path / "google", tmp_path / "ours", "google_bert")
    from_tensorflow(tmp_path / "ours", tmp_path / "theirs")
    theirs = HuggingFaceReader(tmp_path / "theirs")
    weight = theirs.read("bert.encoder.layer.1.attention.self.key.weight")
    google = tensors["bert/encoder/layer_1/attention/self/key/kernel"]
    np.testing.assert_array_equal(weight, google.T)
    assert theirs.config["hidden_act"] == "gelu_new"  # the tanh form, as Google computes it
