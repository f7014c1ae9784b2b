"""Which tokens are masked, pairs of segments, and where sentences end."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import ConfigError
from modelzoo.bert.masking import MaskSettings, count_masked, draw_masks
from modelzoo.bert.next_sentence import sentence_pairs, truncate_pair
from modelzoo.common.fine_tuning import sentences
from modelzoo.common.tokenizers.tokenizers import read_word_numbers
from tests.messages import raises

MASK = 3
SETTINGS = MaskSettings(MASK, (10, 1000), 0.15, 20)


def draw(length=100, seed=0, settings=SETTINGS, continues=None):
    ids = np.arange(1000, 1000 + length)
    allowed = np.ones(length, bool)
    allowed[[0, -1]] = False
    generator = np.random.default_rng(seed)
    return ids, allowed, draw_masks(ids, allowed, settings, generator, continues)


@pytest.mark.parametrize(
    ("length", "expected"), [(1, 1), (3, 1), (13, 2), (20, 3), (100, 15), (128, 19), (400, 20)]
)
def test_share_of_the_tokens_is_masked_but_at_least_one_and_at_most_the_room(length, expected):
    assert count_masked(length, SETTINGS) == expected


def test_positions_ascend_with_the_original_tokens():
    ids, allowed, (masked, positions, originals) = draw()
    assert len(positions) == 15 and np.all(np.diff(positions) > 0)
    assert np.all(allowed[positions])
    np.testing.assert_array_equal(originals, ids[positions])
    others = np.setdiff1d(np.arange(len(ids)), positions)
    np.testing.assert_array_equal(masked[others], ids[others])


def test_same_seed_draws_the_same_and_another_seed_others():
    first, again, other = (draw(seed=seed)[2] for seed in (5, 5, 6))
    for a, b in zip(first, again):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[1], other[1])


def test_eight_in_ten_become_the_mask_one_a_random_token_one_stays():
    kinds = np.zeros(3)
    for seed in range(400):
        ids, _, (masked, positions, _) = draw(seed=seed)
        chosen = masked[positions]
        random = (chosen >= 10) & (chosen < 1000)
        same = chosen == ids[positions]
        kinds += [np.sum(chosen == MASK), random.sum(), same.sum()]
    assert kinds.sum() == 400 * 15
    np.testing.assert_allclose(kinds / kinds.sum(), [0.8, 0.1, 0.1], atol=0.02)


def test_every_allowed_position_is_equally_likely():
    counts = np.zeros(20)
    for seed in range(3000):
        counts[draw(20, seed)[2][1]] += 1
    assert counts[0] == counts[-1] == 0
    np.testing.assert_allclose(counts[1:-1] / 3000, 3 / 18, atol=0.035)


def test_whole_words_are_masked_together_and_never_more_than_wanted():
    continues = np.zeros(100, bool)
    continues[[3, 4, 8, 9, 10, 50, 51]] = True
    words = [[2, 3, 4], [7, 8, 9, 10], [49, 50, 51]]
    met = set()
    for seed in range(60):
        positions = set(draw(seed=seed, continues=continues)[2][1].tolist())
        assert len(positions) <= 15
        for number, word in enumerate(words):
            assert len(positions & set(word)) in (0, len(word))
            if positions >= set(word):
                met.add(number)
    assert met == {0, 1, 2}


def test_sequence_without_an_allowed_token_has_no_mask():
    ids = np.array([101, 102])
    for continues in (None, np.zeros(2, bool)):
        generator = np.random.default_rng(0)
        masked, positions, originals = draw_masks(
            ids, np.zeros(2, bool), SETTINGS, generator, continues
        )
        np.testing.assert_array_equal(masked, ids)
        assert len(positions) == len(originals) == 0


@pytest.mark.parametrize("missing", ["[UNK]", "[MASK]"])
def test_vocabulary_without_a_special_token_is_refused(missing, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join({"[PAD]", "[UNK]", "[MASK]", "a"} - {missing}) + "\n")
    with raises(ConfigError, "vocab.txt", missing):
        read_word_numbers(str(path), "[UNK]", "[MASK]")


def library(count=6, seed=0):
    """Documents of sentences; the tokens say document and place: 1000 * document + place."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        lengths = rng.integers(2, 9, rng.integers(1, 30))
        tokens = 1000 * number + np.arange(lengths.sum())
        made.append(np.split(tokens, np.cumsum(lengths)[:-1]))
    return made


def pairs(documents, index, seed=0, target=20):
    generator = np.random.default_rng(seed)
    return list(sentence_pairs(documents, index, lambda: target, generator))


def test_a_following_segment_begins_where_the_first_ends():
    documents = library()
    for index in range(len(documents)):
        for first, second, is_random in pairs(documents, index):
            if not is_random:
                joined = np.concatenate([first, second])
                np.testing.assert_array_equal(np.diff(joined), 1)
                assert joined[0] // 1000 == index


def test_a_random_segment_comes_from_another_document():
    documents = library()
    for index in range(len(documents)):
        for first, second, is_random in pairs(documents, index):
            assert np.all(first // 1000 == index)
            if is_random:
                assert np.all(second // 1000 == second[0] // 1000) and second[0] // 1000 != index


def test_every_sentence_of_a_document_is_used_and_in_order():
    documents = library()
    for index, document in enumerate(documents):
        own = [
            part
            for first, second, is_random in pairs(documents, index)
            for part in ([first] if is_random else [first, second])
        ]
        np.testing.assert_array_equal(np.concatenate(own), np.concatenate(document))


def test_about_half_of_the_pairs_do_not_follow():
    documents = [[np.array([number, place]) for place in range(400)] for number in range(3)]
    drawn = [is_random for index in range(3) for *_, is_random in pairs(documents, index)]
    assert len(drawn) > 100 and 0.4 < np.mean(drawn) < 0.6


def test_a_document_of_one_sentence_is_paired_at_random():
    documents = [[np.array([1, 2])], [np.array([3])]]
    ((first, second, is_random),) = pairs(documents, 0)
    assert is_random and first.tolist() == [1, 2] and second.tolist() == [3]


def test_truncation_takes_from_the_longer_at_both_ends():
    generator = np.random.default_rng(0)
    fronts = 0
    for _ in range(50):
        first, second = truncate_pair(np.arange(100), np.arange(200, 210), 30, generator)
        assert len(first) + len(second) == 30 and len(second) == 10
        np.testing.assert_array_equal(np.diff(first), 1)
        fronts += first[0]
    assert 30 < fronts / 50 < 50  # 80 tokens go, half of them in front


def test_truncation_leaves_both_a_token():
    for n in range(1, 6):
        for m in range(1, 6):
            generator = np.random.default_rng(n * 10 + m)
            first, second = truncate_pair(np.arange(n), np.arange(m), 2, generator)
            assert len(first) == len(second) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It rains. We stay in! Do we? Yes.", ["It rains.", "We stay in!", "Do we?", "Yes."]),
        ("Mr. Smith met Dr. J. Doe in the U.S. Army. He left.", 2),
        ('"Stop." He did. (Twice.) "Go!" she said.', 4),
        ("It costs 3.50 dollars, e.g. at No. 5 there. 1999 was cheaper.", 2),
        ("It was . Then it is . 3 of them", ["It was .", "Then it is .", "3 of them"]),
        ("Über alles. Élan vital. οὐ γάρ. Ἀλλά.", 4),
        ("A heading\n\nA line. And a second", ["A heading", "A line.", "And a second"]),
        ("one sentence. goes on in lower case.", 1),
        (" \n\t\n", []),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text, expected):
    found = sentences.split_sentences(text)
    assert found == expected if isinstance(expected, list) else len(found) == expected, found


def test_no_character_but_space_is_lost():
    text = 'He said: "No." Then -- at 5 p.m. -- she left... Why? "Ask!" A. B. Cox did so.\nEnd'
    joined = "".join(sentences.split_sentences(text))
    assert joined.replace(" ", "") == "".join(text.split())


def test_documents_end_at_blank_lines_or_at_a_separator_and_lines_may_be_sentences():
    assert sentences.split_lines("a. B.\n\n c \n") == ["a. B.", "c"]
    assert sentences.split_documents("a\nb\n \n\nc\n") == ["a\nb", "c"]
    assert sentences.split_documents("a\n\nb\n---\nc", "---") == ["a\n\nb", "c"]
    assert sentences.split_documents("a\rb\r\rc") == ["a\nb", "c"]


@pytest.mark.parametrize("space", [*"\x0b\x0c\x1c\x1d\x85\u2028\u2029", "\r"])
def test_documents_and_sentences_end_at_lf_only_as_in_the_original(space):
    text = f"One{space}goes on{space}{space}.\nTwo\n\nOne{space}{space}line\n"
    found = [sentences.split_lines(part) for part in sentences.split_documents(text)]
    assert list(map(len, found)) == [2, 1]
    assert list(map(len, map(sentences.split_sentences, text.split("\n\n")))) == [2, 1]
