"""Tests of the interface to EleutherAI's harness, with tasks made here; nothing is fetched."""

from __future__ import annotations

import json
import os

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Of any error: its own imports may be there and not fit one another.
try:
    import lm_eval
    from lm_eval.api.instance import Instance
    from lm_eval.tasks import TaskManager
except Exception as error:
    pytest.skip(f"the lm-eval harness cannot be imported: {error}", allow_module_level=True)

from modelzoo.common.evaluate.lm_eval_adapter import ZooLM
from modelzoo.common.evaluate.tasks import MultipleChoice, evaluate
from tests.modelzoo.language_models import POSITIONS, SmallModel

ROWS = [
    {"question": f"{n} and {n} are", "choices": choices, "answer": n % 3}
    for n in range(7)
    for choices in ([str(2 * n), "green", "so so"], ["ééééé", "five!", "in all eleven"])
]
TASK = """\
task: made
dataset_path: json
dataset_kwargs:
    data_files:
        test: {data}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list:
    - metric: acc
    - metric: acc_norm
    - metric: acc_bytes
"""


@pytest.fixture
def session(tmp_path):
    with SmallModel("gpt3", tmp_path).session() as session:
        yield session


def instances(kind, *arguments):
    return [Instance(kind, {}, args, number) for number, args in enumerate(arguments)]


def test_the_harness_evaluates_a_task_made_here(session, tmp_path):
    data, folder = tmp_path / "rows.jsonl", tmp_path / "tasks"
    data.write_text("\n".join(map(json.dumps, ROWS)))
    folder.mkdir()
    (folder / "made.yaml").write_text(TASK.format(data=data))
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=ZooLM(session), tasks=["made"], task_manager=manager, bootstrap_iters=0
    )
    rows = [
        MultipleChoice("x", row["question"], tuple(row["choices"]), row["answer"]) for row in ROWS
    ]
    results, scores = evaluate(session, rows)
    assert scores == {
        name: pytest.approx(found["results"]["made"][f"{name},none"])
        for name in ("acc", "acc_norm", "acc_bytes")
    }
    chosen = [[row[key] for row in results] for key in ("choice", "choice_norm", "choice_bytes")]
    assert chosen[0] != chosen[1] != chosen[2] != chosen[0]  # the rows tell them apart


def test_rolling_log_likelihood_predicts_each_token_of_a_long_text_once(session):
    text = "a text that is longer than the model reads at once. " * 3
    (found,) = ZooLM(session).loglikelihood_rolling(instances("loglikelihood_rolling", (text,)))
    tokens = session.tokenizer.encode(text)
    expected, start = 0.0, 0
    while start < len(tokens):
        end = min(start + POSITIONS, len(tokens))
        context = tokens[max(end - POSITIONS - 1, 0) : start] if start else [256]
        expected += session.score([(context, tokens[start:end])])[0].log_prob
        start = end
    assert found == pytest.approx(expected, abs=1e-3)


def test_completions_end_at_the_texts_of_until(session):
    model = ZooLM(session)

    def complete(**options):
        (text,) = model.generate_until(instances("generate_until", ("so", options)))
        return text

    whole = complete(max_gen_toks=8)
    assert len(whole) > 2
    assert complete(max_gen_toks=8, until=[whole[2]]) == whole[: whole.index(whole[2])]
    assert complete(max_gen_toks=8, do_sample=True, temperature=3.0) != whole
