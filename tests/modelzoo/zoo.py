"""A small params file with its data, for every model of the registry. Holds no tests.

Each is a config of configs/ with small layers, and data that are made in a folder.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import yaml

from modelzoo.bert.fine_tuning.extractive_summarization import preparation as articles
from modelzoo.bert.fine_tuning.question_answering import preparation as questions
from modelzoo.bert.fine_tuning.token_classifier import preparation as tags
from modelzoo.common.fine_tuning import article_encoding
from tests.modelzoo import made_records
from tests.modelzoo.bert.fine_tuning.extractive_summarization import made_articles
from tests.modelzoo.bert.fine_tuning.made_data import write_sst2, write_tagged, write_vocabulary
from tests.modelzoo.bert.fine_tuning.question_answering import made_squad

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SIZES = {"hidden_size": 16, "num_heads": 2, "filter_size": 32}
LAYERS = {**SIZES, "num_hidden_layers": 1}
RUN = {
    "max_steps": 4,
    "eval_steps": 0,
    "predict_steps": 2,
    "save_summary_steps": 1,
    "save_checkpoints_steps": 2,
    "tf_random_seed": 1,
}


def small(config, sections, layers=None):
    """Returns the tree of a config with small layers and other keys in some sections.

    Args:
        config: its name without ``params_``.
        sections: keys by section. An input section is replaced, not updated.
        layers: keys of the section ``model``; LAYERS if None.
    """
    tree = yaml.safe_load((CONFIGS / f"params_{config}.yaml").read_text(encoding="utf-8"))
    tree["model"].update(layers or LAYERS)
    tree["runconfig"] = dict(RUN)
    tree["optimizer"]["learning_rate"] = 0.01
    for name, keys in sections.items():
        tree[name] = keys if name.endswith("_input") else {**tree[name], **keys}
    return tree


def gpt(folder, config, **model):
    """A byte-level GPT on a text, which predicts completions of prompts."""
    (folder / "texts").mkdir()
    (folder / "texts" / "a.txt").write_text("so much depends upon a red wheel barrow " * 9)
    prompts = [{"prompt": "so much "}, {"prompt": "a red"}, {"prompt": "glazed"}]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    text = {
        "data_processor": "GptTextDataProcessor",
        "data_dir": "texts",
        "eval_fraction": 0.0,
        "max_sequence_length": 16,
        "batch_size": 4,
    }
    predict = {
        "data_processor": "GptPromptsProcessor",
        "prompt_file": "prompts.jsonl",
        "batch_size": 2,
        "max_new_tokens": 4,
    }
    inputs = {"train_input": text, "eval_input": dict(text), "predict_input": predict}
    return small(config, {**inputs, "model": model})


def bert(folder):
    """BERT on records with masks and next sentences."""
    (folder / "records").mkdir()
    made_records.write_records(folder / "records", "bert")
    section = {
        "data_processor": "BertTfRecordsProcessor",
        "data_dir": "records",
        "vocab_size": made_records.V,
        "max_sequence_length": made_records.S,
        "max_predictions_per_seq": made_records.P,
        "batch_size": 3,
    }
    evaluation = {"data_dir": "records", "data_processor": section["data_processor"]}
    model = {"disable_nsp": False, "use_segment_embedding": True}
    return small("bert_tiny", {"train_input": section, "eval_input": evaluation, "model": model})


def transformer(folder):
    """An encoder-decoder on pairs of lines, which reverses their words."""
    generator = np.random.default_rng(0)
    words = [f"w{number}" for number in range(12)]
    lines = [generator.choice(words, generator.integers(2, 7)) for _ in range(24)]
    for name, order in (("source", 1), ("target", -1)):
        text = "\n".join(" ".join(line[::order]) for line in lines)
        (folder / f"{name}.txt").write_text(text + "\n")
    (folder / "vocab.txt").write_text("\n".join(["<pad>", "<unk>", "<s>", "</s>", *words]) + "\n")
    section = {
        "data_processor": "TransformerDynamicDataProcessor",
        "src_data_dir": "source.txt",
        "tgt_data_dir": "target.txt",
        "src_vocab_file": "vocab.txt",
        "tgt_vocab_file": "vocab.txt",
        "src_vocab_size": 16,
        "tgt_vocab_size": 16,
        "src_max_sequence_length": 10,
        "tgt_max_sequence_length": 10,
        "batch_size": 6,
    }
    evaluation = {"src_data_dir": "source.txt", "tgt_data_dir": "target.txt"}
    inputs = {"train_input": section, "eval_input": evaluation}
    inputs["predict_input"] = {"batch_size": 3, "beam_size": 2, "extra_length": 2}
    layers = {**SIZES, "encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1}
    return small("transformer_tiny", inputs, layers)


def classifier(folder):
    """BERT on SST-2's tab-separated files."""
    write_sst2(folder / "sst2", (("train", 24), ("dev", 7), ("test", 5)))
    section = {
        "data_processor": "Sst2DataProcessor",
        "data_dir": "sst2",
        "vocab_file": str(write_vocabulary(folder)),
        "max_sequence_length": 16,
        "batch_size": 6,
    }
    evaluation = {"data_dir": "sst2", "data_processor": section["data_processor"]}
    return small("bert_small_sst2", {"train_input": section, "eval_input": evaluation})


def token_classifier(folder):
    """BERT on records of tagged sentences."""
    data = write_tagged(folder / "data", (("train", 24), ("devel", 7), ("test", 5)))
    settings = tags.Settings(str(write_vocabulary(folder)), True, 20)
    for split in ("train", "dev"):
        tags.prepare(str(data), split, str(folder / "records"), settings)
    section = {
        "data_processor": "NerDataProcessor",
        "data_dir": "records/train",
        "label_vocab_file": "records/label2id.json",
        "vocab_size": 28,
        "max_sequence_length": 20,
        "batch_size": 6,
    }
    inputs = {"train_input": section, "eval_input": {"data_dir": "records/dev"}}
    inputs["predict_input"] = {"text_file": str(data / "devel.tsv")}
    return small("bert_small_ncbi_disease", {**inputs, "model": {"num_classes": 7}})


def question_answering(folder):
    """BERT on records of SQuAD's questions, which predicts answers to a json file."""
    vocabulary = str(write_vocabulary(folder))
    settings = questions.Settings(vocabulary, True, max_seq_length=20, doc_stride=8)
    for name, count in (("train", 8), ("dev", 3)):
        made_squad.write_squad(folder / f"{name}.json", made_squad.articles(count))
        questions.prepare(str(folder / f"{name}.json"), folder / name, settings)
    section = {
        "data_processor": "QuestionAnsweringDataProcessor",
        "data_dir": "train",
        "vocab_file": vocabulary,
        "do_lower_case": True,
        "doc_stride": 8,
        "max_sequence_length": 20,
        "mark_question_words": True,
        "buckets": [15],
        "batch_size": 6,
    }
    inputs = {"train_input": section, "eval_input": {"data_dir": "dev"}}
    inputs["predict_input"] = {"predict_file": "dev.json"}
    model = {"use_segment_embedding": True, "num_segments": 3}
    return small("bert_small_squad", {**inputs, "model": model})


def extractive_summarization(folder):
    """BERT on records of articles, which predicts summaries of a .jsonl file."""
    vocabulary = str(write_vocabulary(folder))
    limits = {"max_sequence_length": 70, "max_cls_tokens": 8, "max_highlight_tokens": 30}
    settings = article_encoding.EncodingSettings(vocabulary, True, **limits)
    for seed, (name, count) in enumerate((("train", 12), ("dev", 5))):
        path = made_articles.write_jsonl(folder / f"{name}.jsonl", made_articles.rows(count, seed))
        articles.prepare(str(path), folder / name, settings)
    section = {
        "data_processor": "BertSumTfRecordsProcessor",
        "data_dir": "train",
        "vocab_file": vocabulary,
        "do_lower_case": True,
        "sep_id": 3,
        "batch_size": 4,
        **limits,
    }
    inputs = {"train_input": section, "eval_input": {"data_dir": "dev", "top_k": 2}}
    inputs["predict_input"] = {"predict_file": "dev.jsonl"}
    return small("bert_small_bertsum", inputs)


# By name: the function that makes data in a folder and returns the tree of a params file.
MODELS = {
    "bert": bert,
    "bert.fine_tuning.classifier": classifier,
    "bert.fine_tuning.extractive_summarization": extractive_summarization,
    "bert.fine_tuning.question_answering": question_answering,
    "bert.fine_tuning.token_classifier": token_classifier,
    "gpt3": lambda folder: gpt(folder, "gpt3_tiny"),
    "gptj": lambda folder: gpt(folder, "gptj_tiny", rotary_dim=4),
    "transformer": transformer,
}
