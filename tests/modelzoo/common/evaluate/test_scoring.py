"""Log-likelihoods against sums over log-softmax and Hugging Face; zero-shot tasks."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import DataError
from modelzoo.common.evaluate.scoring import Score, Scorer, split_tokens
from modelzoo.common.evaluate.tasks import LastWord, MultipleChoice, read_task
from modelzoo.common.generate.generate import Request
from modelzoo.common.generate.sampling import Sampler, log_softmax
from modelzoo.common.tokenizers.tokenizers import ByteTokenizer
from tests.messages import raises
from tests.modelzoo.language_models import NAMES, POSITIONS, VOCAB_SIZE, SmallModel

LENGTHS = ((1, 1), (3, 4), (20, 2), (POSITIONS, 1), (POSITIONS + 9, 5), (1, POSITIONS), (5, 2))


def random_pairs():
    generator = np.random.default_rng(0)
    return [
        tuple(generator.integers(0, VOCAB_SIZE, length).astype(np.int32) for length in lengths)
        for lengths in LENGTHS
    ]


def expected_scores(model, pairs):
    """The log-probability of each continuation, and whether it is greedy, from all logits."""
    texts = [np.concatenate(pair)[-POSITIONS - 1 :] for pair in pairs]
    padded = np.array([np.pad(text[:-1], (0, POSITIONS + 1 - len(text))) for text in texts])
    for text, logits, (_, continuation) in zip(texts, model.full_logits(padded), pairs):
        log_probs = log_softmax(logits[: len(text) - 1])[-len(continuation) :]
        chosen = log_probs[np.arange(len(continuation)), continuation]
        yield chosen.sum(), bool((log_probs.argmax(-1) == continuation).all())


@pytest.mark.parametrize("use_cs", [False, True], ids=["host", "wafer"])
@pytest.mark.parametrize("name", NAMES)
def test_scores_equal_sums_over_the_log_softmax_of_the_whole_text(tmp_path, name, use_cs):
    model = SmallModel(name, tmp_path)
    pairs = random_pairs()
    greedy = model.full_logits(pairs[6][0][None])[0, -1].argmax()
    pairs.append((pairs[6][0], np.array([greedy], np.int32)))
    counted = []
    with model.session(use_cs) as session:
        scores = session.score(pairs, report=counted.append)
    assert sum(counted) == len(pairs)
    for pair, score, expected in zip(pairs, scores, expected_scores(model, pairs)):
        log_prob, is_greedy = expected
        assert score.log_prob == pytest.approx(log_prob, rel=1e-4, abs=1e-4)
        assert (score.is_greedy, score.num_tokens) == (is_greedy, len(pair[1]))
    assert scores[-1].is_greedy


def test_scores_equal_hugging_faces_loss(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from modelzoo.common.convert.convert import to_tensorflow

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=257, n_positions=POSITIONS, n_embd=8, n_layer=2, n_head=2, initializer_range=0.3
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    model = SmallModel("gpt3", tmp_path / "ours", filter_size=32)
    done = to_tensorflow(str(tmp_path / "theirs"), str(tmp_path / "converted"), "hugging_face")
    model.checkpoint = str(done.path)
    pairs = [pair for pair in random_pairs() if len(pair[0]) + len(pair[1]) <= POSITIONS]
    with model.session() as session:
        scores = session.score(pairs)
    for (context, continuation), score in zip(pairs, scores):
        ids = torch.tensor(np.concatenate([context, continuation])[None].astype(np.int64))
        labels = torch.where(torch.arange(ids.shape[1]) < len(context), -100, ids)
        loss = theirs(ids, labels=labels).loss.item() * len(continuation)
        assert -score.log_prob == pytest.approx(loss, rel=1e-4, abs=1e-4)


def test_a_session_scores_after_completing_and_completes_after_scoring(tmp_path):
    model = SmallModel("gpt3", tmp_path)
    pairs = random_pairs()[:2]
    with model.session() as session:
        before = session.score(pairs)
        (done,) = session.complete([Request(np.array([5, 6]), Sampler(), 3)])
        after = session.score(pairs)
    assert before == after
    assert len(done.tokens) == 3
    with model.session() as session:
        made = [session.score([(done.prompt, np.array(done.tokens))])[0]]
    assert made[0].is_greedy
    assert made[0].log_prob == pytest.approx(sum(done.log_probs), abs=1e-4)


def test_pairs_that_cannot_be_scored_are_refused():
    scorer = Scorer(None, 2, 8)
    for context, continuation in (([], [1]), ([1], []), ([1], [1] * 9)):
        pairs = [([1], [2]), (context, continuation)]
        with raises(DataError, "continuation 1", "1 to 8 tokens"):
            scorer.score(pairs)
        with raises(DataError, "a.jsonl:7"):
            scorer.score(pairs, places=["a.jsonl:6", "a.jsonl:7"])


def test_texts_are_split_where_their_words_begin():
    def split(context, continuation):
        parts = split_tokens(ByteTokenizer(), context, continuation, 256)
        return [tokens.tolist() for tokens in parts]

    assert split("ab ", "c") == [list(b"ab"), list(b" c")]
    assert split("ab", " c") == [list(b"ab"), list(b" c")]
    assert split("", "c") == [[256], list(b"c")]
    assert split(" ", "c") == [[256], list(b" c")]


class Pairs:
    """Two characters are one token."""

    def encode(self, text):
        return np.array([hash(text[i : i + 2]) for i in range(0, len(text), 2)], np.int64)


@pytest.mark.parametrize("context", ["a", "abc", "ab", "abc \n"])
@pytest.mark.parametrize("continuation", ["d", "de", "def", " d"])
def test_a_token_that_spans_both_parts_is_split_as_in_the_harness(context, continuation):
    harness = pytest.importorskip("lm_eval.api.model")

    class Peer(harness.TemplateLM):
        """A model that only tokenizes."""

        backend = "causal"
        eot_token_id = loglikelihood_rolling = generate_until = _loglikelihood_tokens = None

        def tok_encode(self, text, **options):
            return Pairs().encode(text).tolist()

    found = [part.tolist() for part in split_tokens(Pairs(), context, continuation, 0)]
    wanted = Peer()._encode_pair(context, continuation)
    # The harness gives the continuation no token, and fails, where it is tokenized by itself here.
    assert found == [wanted[0], wanted[1] or Pairs().encode(continuation).tolist()]
    assert all(found)


def write(path, *rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def choice_row(**changes):
    return {"context": "A dog says", "choices": ["woof", "meow"], "answer": 0, **changes}


def scores(*log_probs):
    return [Score(log_prob, False, 1) for log_prob in log_probs]


def test_choices_follow_the_context_after_one_space(tmp_path):
    changes = ({}, {"context": "A:\n"}, {"choices": [" x", "y"]}, {"context": ""})
    path = write(tmp_path / "a.jsonl", *(choice_row(**keys) for keys in changes))
    rows = read_task(path, "multiple_choice")
    assert rows[0].texts() == [("A dog says", " woof"), ("A dog says", " meow")]
    assert rows[1].texts()[0] == ("A:\n", "woof")
    assert [text for _, text in rows[2].texts()] == [" x", " y"]
    assert rows[3].texts()[0] == ("", "woof")


def test_accuracies_take_the_likeliest_choice_by_itself_by_character_and_by_byte():
    row = MultipleChoice("a:1", "c", ("né", "a long choice"), 1)
    result = row.result(scores(-3.0, -6.0))
    assert [result[key] for key in ("choice", "choice_norm", "choice_bytes")] == [0, 1, 1]
    assert MultipleChoice.summary([result]) == {"acc": 0.0, "acc_norm": 1.0, "acc_bytes": 1.0}
    # Two characters of three bytes: -2.9 / 3 is more than -13 / 13, and -2.9 / 2 is less.
    result = row.result(scores(-2.9, -13.0))
    assert [result[key] for key in ("choice", "choice_norm", "choice_bytes")] == [0, 1, 0]


def test_the_last_word_is_scored_after_all_before_it(tmp_path):
    (row,) = read_task(write(tmp_path / "a.jsonl", {"text": " so it\n goes \n"}), "last_word")
    assert row.texts() == [("so it", "\n goes")]


def test_a_no_break_space_is_part_of_a_last_word(tmp_path):
    text = "the sum is 10\u00a0000"
    (row,) = read_task(write(tmp_path / "a.jsonl", {"text": text}), "last_word")
    assert row.texts() == [("the sum is", " 10\u00a0000")]


def test_last_words_are_summed_up_as_accuracy_and_perplexity():
    row = LastWord("a:1", "so it", " goes")
    results = [
        row.result([Score(math.log(0.5), True, 2)]),
        row.result([Score(math.log(0.125), False, 2)]),
    ]
    summary = LastWord.summary(results)
    assert summary["acc"] == 0.5
    assert summary["perplexity"] == pytest.approx(4.0, rel=1e-4)


@pytest.mark.parametrize(
    ("mode", "row", "facts"),
    [
        ("multiple_choice", {"choices": ["a", "b"], "answer": 0}, ("context",)),
        ("multiple_choice", choice_row(choices=["a"]), ("choices",)),
        ("multiple_choice", choice_row(choices=["a", 3]), ("choices",)),
        ("multiple_choice", choice_row(choices=["a", ""]), ("choices",)),
        ("multiple_choice", choice_row(choices=["a", "b\ud800"]), ("Unicode",)),
        ("multiple_choice", choice_row(answer=2), ("answer", "0 to 1", 2)),
        ("multiple_choice", choice_row(answer="woof"), ("answer",)),
        ("last_word", {"text": "one"}, ("two words", "'one'")),
        ("last_word", {"words": "a b"}, ("text", "words")),
    ],
)
def test_mistakes_are_named_with_file_and_line(tmp_path, mode, row, facts):
    fine = choice_row() if mode == "multiple_choice" else {"text": "a b"}
    with raises(DataError, "a.jsonl:2: ", *facts):
        read_task(write(tmp_path / "a.jsonl", fine, row), mode)
