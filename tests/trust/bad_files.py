"""The files that the project reads: how each is made, and how it is read."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from cerebras_tf.bundle.index import find_cut_files, read_index
from cerebras_tf.bundle.writer import BundleWriter
from cerebras_tf.compiler.pipeline import compile_step
from cerebras_tf.ir import TensorType
from cerebras_tf.ir.program_file import save_program
from cerebras_tf.memoryx.safetensors_file import TensorFile, write_weights
from cerebras_tf.report.compare import compare_page, compare_text
from cerebras_tf.report.record import read_record
from cerebras_tf.runtime.saved_run import read_features, read_variable
from cerebras_tf.runtime.verify_program import load_verified
from modelzoo.common.config.params import load_params, saved_runconfig
from modelzoo.common.convert.hugging_face import HuggingFaceReader, TorchReader
from modelzoo.common.data import record_files
from modelzoo.common.data.hdf5_files import Hdf5Records, Hdf5Writer
from modelzoo.common.data.preparation.records import RecordWriter
from modelzoo.common.data.prepared import check_listed, known_labels, read_facts
from modelzoo.common.data.prompts import read_prompts
from modelzoo.common.files import text_sources
from modelzoo.common.files.json_text import read_json_lines
from modelzoo.common.files.text_lines import read_lines
from modelzoo.common.fine_tuning.squad_files import read_articles
from modelzoo.common.fine_tuning.tag_labels import read_label_names
from modelzoo.common.metrics import scores
from modelzoo.common.model_dir import resume
from modelzoo.common.tokenizers.tokenizers import ByteTokenizer, load_tokenizer, normalization_of
from modelzoo.common.train import evaluations, trained_on
from modelzoo.hugging_face.params import read_config
from tests.steps import residual_step

ROOT = Path(__file__).resolve().parents[2]
S = 4
LAYOUT = record_files.integers(("input_ids", "labels"), S)
REPORT_FIGURES = {
    **dict.fromkeys(("name", "machine", "release", "mode", "bound"), "x"),
    **dict.fromkeys(("num_csx", "replicas", "parameters", "layers", "global_batch"), 2),
    **dict.fromkeys(("step_s", "steps_per_s", "samples_per_s", "tokens_per_s"), 0.5),
    **dict.fromkeys(("pflop_a_step", "utilisation", "kept_gb", "spilled_gb"), 0.5),
    "fits": True,
    "recomputes": False,
    "tokens_a_step": 8,
    "energy_kj_at_most": 1.5,
}


def write_json(value):
    return lambda path: path.write_text(json.dumps(value), encoding="utf-8")


def write_text(text):
    return lambda path: path.write_text(text, encoding="utf-8")


def weights(path):
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float32)}
    write_weights(
        path, {n: TensorType("float32", x.shape) for n, x in arrays.items()}, arrays.items()
    )


def read_weights(path):
    reader = TensorFile(path)
    return {name: reader.read_weight(name) for name in reader.regions}


def torch_weights(path):
    import torch

    torch.save({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4)}, path)


def read_torch_weights(path):
    reader = TorchReader(path)
    return {name: reader.read_weight(name) for name in reader.regions}


def model_folder(path):
    """A weight index, next to its config and its one file."""
    write_json({"model_type": "gpt2"})(path.parent / "config.json")
    weights(path.parent / "model-1.safetensors")
    write_json({"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}})(path)


def read_model_folder(path):
    reader = HuggingFaceReader(path.parent)
    return {name: reader.read(name) for name in reader.shapes}


def bundle(path):
    writer = BundleWriter(str(path.parent))
    writer.add("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add("global_step", np.array(3, np.int64))
    writer.finish(str(path.parent / "model.ckpt-3"))


def read_bundle(path):
    prefix = str(path.parent / "model.ckpt-3")
    find_cut_files(prefix)
    return {name: read_variable(name, entry) for name, entry in read_index(prefix).items()}


def tf_records(path):
    rng = np.random.default_rng(0)
    writer = RecordWriter(path.parent, "examples", 8)
    for _ in range(3):
        writer.write({name: rng.integers(0, 9, S) for name in LAYOUT})
    writer.close()
    next(path.parent.glob("*.tfrecord*")).rename(path)


def read_tf_records(path):
    record_files.check_files([str(path)], LAYOUT, 1, 9)
    records = record_files.Records([str(path)], LAYOUT)
    return records.rows(range(len(records)))


def hdf5_records(path):
    writer = Hdf5Writer(path.parent, "examples", 8)
    for _ in range(3):
        writer.write({n: np.arange(S) for n in ("input_ids", "input_mask", "labels")})
    writer.close()
    next(path.parent.glob("*.h5")).rename(path)


def read_hdf5_records(path):
    records = Hdf5Records(str(path.parent), S)
    return records.rows(range(len(records)))


def report(path):
    causes = dict.fromkeys(("compute", "fabric", "sram", "bubbles", "software", "link"), 0.1)
    text = json.dumps({**REPORT_FIGURES, "seconds_by_cause": causes})
    path.write_text(f'<p></p><script type="application/json" id="prediction">{text}</script>')


def read_report(path):
    records = [read_record(str(path))] * 2
    return compare_text(records), compare_page(records)


def tokenizer(path):
    words = {"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}
    model = {"type": "BPE", "vocab": words, "merges": ["a b"], "dropout": None}
    write_json({"version": "1.0", "model": model, "added_tokens": []})(path)


def read_tokenizer(path):
    found = load_tokenizer("JsonTokenizer", str(path))
    return found.encode("ab").tolist(), found.vocab_size


def program(path):
    save_program(compile_step(residual_step(1)), path)


MANIFEST = {
    "settings": {
        "max_seq_length": 8,
        "vocabulary": [["vocab.txt", "x"]],
        "labels": ["a", "b"],
        "inputs": [["a.txt", 3, "x"]],
        "do_lower_case": True,
        "normalization": {"lowercase": True},
    },
    "vocab_size": 30,
    "vocabulary_sha256": "x",
    "counts": {"text_bytes": 40, "tokens": 10},
    "files": [],
}
SQUAD = {
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": "a b c",
                    "qas": [
                        {
                            "id": "1",
                            "question": "a?",
                            "answers": [{"text": "b", "answer_start": 2}],
                            "is_impossible": False,
                        }
                    ],
                }
            ],
        }
    ]
}
PROMPTS = '{"prompt": "a"}\n{"prompt": "b", "id": 3}\n'
BYTES = ByteTokenizer()


def in_folder(reader):
    return lambda path: reader(path.parent)


# By name of the file: how it is made, how it is read, whether all its bytes have checksums.
FILES = {
    "params.yaml": (
        lambda path: shutil.copy(ROOT / "configs/params_gpt3_tiny.yaml", path),
        load_params,
        False,
    ),
    "saved/params.yaml": (
        write_text("runconfig: {max_steps: 3}\n"),
        in_folder(saved_runconfig),
        False,
    ),
    "model.safetensors": (weights, read_weights, False),
    "pytorch_model.bin": (torch_weights, read_torch_weights, True),
    "model.safetensors.index.json": (model_folder, read_model_folder, False),
    "config.json": (write_json({"model_type": "gpt2"}), in_folder(read_config), False),
    "model.ckpt-3.index": (bundle, read_bundle, False),
    "model.ckpt-3.data-00000-of-00001": (bundle, read_bundle, True),
    "features.npz": (
        lambda path: np.savez(path, x=np.ones((8, 16), np.float32)),
        lambda path: read_features(
            str(path), SimpleNamespace(given={"x": TensorType("float32", (8, 16))})
        ),
        False,
    ),
    "program.zip": (program, lambda path: str(load_verified(path).slots), True),
    "report.html": (report, read_report, False),
    "a.tfrecords": (tf_records, read_tf_records, False),
    "a.h5": (hdf5_records, read_hdf5_records, False),
    "manifest.json": (
        write_json(MANIFEST),
        lambda path: read_facts(path.parent) and check_listed(path.parent),
        False,
    ),
    "label2id.json": (
        write_json({"[PAD]": 0, "O": 1}),
        lambda path: (
            known_labels(SimpleNamespace(label_vocab_file=str(path))),
            read_label_names(path),
        ),
        False,
    ),
    "squad.json": (
        write_json(SQUAD),
        lambda path: (read_articles.cache_clear(), read_articles(str(path))),
        False,
    ),
    "tokenizer.json": (tokenizer, read_tokenizer, False),
    "tokenizer_config.json": (
        write_json({"do_lower_case": True}),
        in_folder(normalization_of),
        False,
    ),
    "prompts.jsonl": (
        write_text(PROMPTS),
        lambda path: read_prompts(str(path), BYTES, 257, 8),
        False,
    ),
    "rows.jsonl": (write_text(PROMPTS), lambda path: list(read_json_lines(path)), False),
    "documents.jsonl": (
        write_text('{"text": "a"}\n{"text": "b"}\n'),
        lambda path: list(text_sources.read_documents(str(path))),
        False,
    ),
    "documents.txt.gz": (
        lambda path: path.write_bytes(gzip.compress(b"one\ntwo\n")),
        lambda path: list(text_sources.read_documents(str(path))),
        False,
    ),
    "text.txt": (write_text("one\ntwo\n"), read_lines, False),
    "metrics.json": (write_json({"5": {"loss": 0.5}}), evaluations.read, False),
    "scores.json": (write_json({"5": {"f1": 0.5}}), lambda path: scores._read(path), False),
    "data_position.json": (
        write_json([[0, 0, 1], [5, 5, 2]]),
        lambda path: resume.read_history(str(path.parent)),
        False,
    ),
    "trained_on.json": (
        write_json({"records": ["v", "digest"]}),
        lambda path: trained_on._read(path.parent),
        False,
    ),
}
