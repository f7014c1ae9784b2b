"""Tests of modelzoo/bert/masking.py: how many tokens are masked, which, and by what."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.bert.masking import MaskSettings, count_masked, draw_masks
from modelzoo.common.config.model_sections import count_lines
from modelzoo.common.tokenizers.tokenizers import read_word_numbers

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


def test_positions_ascend_and_tell_what_stood_there():
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
    with pytest.raises(ConfigError, match=rf"vocab\.txt: must have the token \{missing[:-1]}"):
        read_word_numbers(str(path), "[UNK]", "[MASK]")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_vocabulary_is_read_whichever_way_its_lines_end(end, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"\xef\xbb\xbf" + end.join(["[UNK]", "[MASK]", "a", ""]).encode())
    assert read_word_numbers(str(path)) == {"[UNK]": 0, "[MASK]": 1, "a": 2}
    assert count_lines(str(path)) == 3


def test_missing_vocabulary_is_refused(tmp_path):
    with pytest.raises(DataError, match="none.txt: .* prepare vocab --algorithm wordpiece"):
        read_word_numbers(str(tmp_path / "none.txt"))
    with pytest.raises(ConfigError, match="Is a directory"):
        read_word_numbers(str(tmp_path))
    (tmp_path / "bytes.txt").write_bytes(b"[UNK]\n\xff\n")
    with pytest.raises(ConfigError, match=r"bytes\.txt: "):
        read_word_numbers(str(tmp_path / "bytes.txt"))
