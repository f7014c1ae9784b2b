"""Scores, predictions and zero-shot tasks, against transformers, scikit-learn and lm-eval."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from modelzoo.commands import zero_shot
from modelzoo.common.config.params import load_params
from modelzoo.common.metrics import confusion, rouge
from modelzoo.common.metrics.entities import entity_counts
from modelzoo.common.train import run
from modelzoo.hugging_face import data
from modelzoo.hugging_face.model import LoadedModel, input_names, make_module
from tests.modelzoo.hugging_face import chats
from tests.modelzoo.hugging_face.test_training import SMALL, tuning_tree

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz", *"0123456789", "."]
WORDS += [f"##{letter}" for letter in "abcdefghi"]


def scored(tree, folder):
    """Trains a step and evaluates; returns the scores, and batches with outputs of transformers."""
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump(tree))
    run.main(["-m", "train_and_eval", "-p", str(path), "--max_steps", "1"])
    found = json.loads((folder / "out/eval/metrics.jsonl").read_text().splitlines()[-1])
    params = load_params(path)
    model = LoadedModel(params)
    model.load(folder / "out" / "step-000001")
    names = input_names(model.module)
    batches = data.make_batches(params.eval_input, False, names | {"is_matched"})
    return found, model.module.eval(), [batches.batch(n) for n in range(len(batches))]


def test_classes_have_f1_and_correlation_of_scikit_learn(tmp_path):
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is a peer")
    tree = tuning_tree("hf_sequence_classification", tmp_path)
    tree["eval_input"]["has_parts"] = True
    tree["model"]["config"]["initializer_range"] = 0.5
    found, module, batches = scored(tree, tmp_path)
    matched = torch.cat([batch.pop("is_matched") for batch in batches]).ravel().numpy()
    labels = torch.cat([batch.pop("labels") for batch in batches]).numpy()
    with torch.no_grad():
        guesses = torch.cat([module(**batch).logits.argmax(-1) for batch in batches]).numpy()
    assert 0 < guesses.mean() < 1 and 0 < matched.mean() < 1
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(labels, guesses))
    assert found["f1_score"] == pytest.approx(metrics.f1_score(labels, guesses))
    assert found["mcc"] == pytest.approx(metrics.matthews_corrcoef(labels, guesses))
    for part, name in enumerate(("accuracy_mismatched", "accuracy_matched")):
        right = (labels == guesses)[matched == part].mean()
        assert found[name] == pytest.approx(right)
    counts = confusion.count_pairs(labels, guesses, 2)
    np.testing.assert_allclose(
        confusion.f1_of_class(counts), metrics.f1_score(labels, guesses, average=None)
    )


def test_tags_have_scores_of_entities(tmp_path):
    tree = tuning_tree("hf_token_classification", tmp_path)
    tree["model"]["config"]["initializer_range"] = 0.5
    names = ["O", "B-X", "I-X"]
    path = tmp_path / "label2id.json"
    path.write_text(json.dumps({name: number for number, name in enumerate(names)}))
    tree["eval_input"]["label_vocab_file"] = str(path)
    found, module, batches = scored(tree, tmp_path)
    total = np.zeros(3)
    for batch in batches:
        labels = batch.pop("labels")
        with torch.no_grad():
            guesses = module(**batch).logits.argmax(-1)
        for row, guess in zip(labels, guesses):
            kept = row >= 0
            total += entity_counts(*([names[n] for n in x[kept]] for x in (row, guess)))
    assert found["entity_f1"] == pytest.approx(2 * total[0] / (total[1] + total[2]))
    assert 0 < found["token_level_macro_f1"] < 1 and total[0] > 0


def test_summaries_have_rouge(tmp_path):
    found, *_ = scored(tuning_tree("hf_extractive_summarization", tmp_path), tmp_path)
    assert set(rouge.ROUGE_FIELDS) <= set(found) and 0 < found["rouge1-f1_score"] <= 1


# ---- predictions


def write_texts(name, folder):
    """Writes the texts of a prediction; returns the keys of predict_input."""
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    given = {"vocab_file": str(folder / "vocab.txt"), "max_sequence_length": 24, "batch_size": 2}
    if name == "hf_sequence_classification":
        rows = ["sentence\tlabel", "a b c\t0", "d e f g h\t1", "i\t1"]
        (folder / "dev.tsv").write_text("\n".join(rows) + "\n")
        return {**given, "data_processor": "Sst2DataProcessor", "data_dir": str(folder)}
    file = folder / "texts.json"
    if name == "hf_question_answering":
        answers = [{"text": "b c", "answer_start": 2}]
        questions = [{"id": n, "question": "a b ?", "answers": answers} for n in ("p", "q")]
        paragraphs = [{"context": "a b c d e f g h.", "qas": questions}]
        file.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
        return {**given, "max_query_length": 4, "predict_file": str(file)}
    rows = [{"article": "A b c d e f. G h i j k l. M n o p q r.", "highlights": "A b c."}] * 3
    file = folder / "texts.jsonl"
    chats.write_rows(file, rows)
    return {**given, "predict_file": str(file), "max_cls_tokens": 3}


FILES = {
    "hf_sequence_classification": "predictions_{}_0.jsonl",
    "hf_question_answering": "predictions.json",
    "hf_extractive_summarization": "summaries_{}_0.jsonl",
}


@pytest.mark.parametrize("name", FILES)
def test_predictions_are_those_of_pytorch(name, tmp_path):
    tree = tuning_tree(name, tmp_path)
    tree["model"]["config"]["initializer_range"] = 0.5
    tree["predict_input"] = write_texts(name, tmp_path)
    tree["runconfig"]["predict_steps"] = 4
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(tree))
    run.main(["-m", "train", "-p", str(path)])
    texts = []
    for flags, where in (([], "cs"), (["--device", "/cpu:0"], "pt")):
        run.main(["-m", "predict", "-p", str(path), *flags])
        text = (tmp_path / "out/predict" / FILES[name].format(where)).read_text()
        lines = text.splitlines() if "{" in FILES[name] else [text]
        texts.append([json.loads(line) for line in lines])
    for ours, theirs in zip(*texts):
        shares = [row.pop("probabilities", 0.0) for row in (ours, theirs)]
        np.testing.assert_allclose(*shares, atol=1e-5)
        assert ours == theirs
    if name != "hf_sequence_classification":
        scores = json.loads((tmp_path / "out/predict/scores.json").read_text())["3"]
        assert {"f1", "rouge1-f1_score"} & set(scores)
    else:
        assert (tmp_path / "out/predict/SST-2.tsv").read_text().count("\n") == 4


# ---- language models


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """A folder of a small language model with a tokenizer."""
    path = tmp_path_factory.mktemp("lm")
    tokenizer = chats.make_tokenizer()
    tokenizer.save_pretrained(path / "model")
    torch.manual_seed(0)
    sizes = {**SMALL, "max_position_embeddings": 64, "initializer_range": 0.3}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(path / "model")
    text = {"data_processor": "GptTextDataProcessor", "max_sequence_length": 16, "batch_size": 2}
    tree = {
        "model_name": "hf_causal_lm",
        "model": {"pretrained": str(path / "model")},
        "train_input": text,
        "predict_input": {
            "data_processor": "GptPromptsProcessor",
            "prompt_file": str(path / "prompts.txt"),
            "max_new_tokens": 5,
            "temperature": 0,
        },
        "optimizer": {"optimizer_type": "sgd", "learning_rate": 0.1},
        "runconfig": {"max_steps": 1, "model_dir": str(path / "out")},
    }
    tree["predict_input"]["batch_size"] = 2
    (path / "prompts.txt").write_text("Who is there?\nNay\n")
    (path / "params.yaml").write_text(yaml.safe_dump(tree))
    return path


def test_log_likelihoods_are_those_of_the_harness(language_model, tmp_path, capsys):
    from modelzoo.hugging_face.scoring import TorchSession

    pairs = [("Who is", " there?"), ("", "Nay, answer me."), ("It is ", "late and is")]
    params = load_params(language_model / "params.yaml")
    with TorchSession(params, 2) as session:
        ours = [(score.log_prob, score.is_greedy) for score in session.score_texts(pairs)]
    try:
        from lm_eval.api.instance import Instance
        from lm_eval.models.huggingface import HFLM
    except Exception as error:
        pytest.skip(f"the lm-eval harness cannot be imported: {error}")
    folder = str(language_model / "model")
    theirs = HFLM(pretrained=folder, device="cpu", dtype="float32", batch_size=1)
    requests = [Instance("loglikelihood", {}, pair, n) for n, pair in enumerate(pairs)]
    for one, other in zip(ours, theirs.loglikelihood(requests)):
        assert one[0] == pytest.approx(other[0], rel=1e-5) and one[1] == other[1]


def test_zero_shot_and_predict_commands(language_model, tmp_path, capsys):
    import argparse

    task = tmp_path / "task.jsonl"
    rows = [{"context": "Who is", "choices": [" there?", " late"], "answer": 0}] * 2
    chats.write_rows(task, rows)
    parser = argparse.ArgumentParser()
    zero_shot.add_arguments(parser)
    path = str(language_model / "params.yaml")
    given = ["-p", path, "-o", str(tmp_path / "out"), "--tasks", str(task)]
    zero_shot.run(parser.parse_args(given))
    assert "task: 2 rows, acc " in capsys.readouterr().out
    assert "zero_shot/task/acc" in (tmp_path / "out/zero_shot/scores.json").read_text()
    run.main(["-m", "predict", "-p", path, "-o", str(tmp_path / "out")])
    rows = [json.loads(r) for r in (tmp_path / "out/predict/completions_cs_0.jsonl").open()]
    module = make_module(load_params(path)).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(language_model / "model")
    for row in rows:
        ids = tokenizer(row["prompt"], return_tensors="pt", add_special_tokens=False)["input_ids"]
        found = module.generate(ids, max_new_tokens=5, do_sample=False)[0, ids.shape[1] :]
        assert row["tokens"] == found.tolist()[: len(row["tokens"])]
