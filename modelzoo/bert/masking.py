"""Random masking of tokens, for prepared records and while reading.

Source: Devlin et al., BERT (2018), section 3.1. n tokens of a sequence, P masked positions of a
record, B batch, S length of a padded sequence, T of the longest row.
"""

from dataclasses import dataclass

import numpy as np

from cerebras_tf.errors import DataError
from modelzoo.common.tokenizers.tokenizers import read_word_numbers

MASKED_SHARE = 0.8  # of the chosen tokens become [MASK]
RANDOM_SHARE = 0.1  # become a random token; the others are unchanged


@dataclass(frozen=True)
class MaskSettings:
    """Settings of masking. `random_ids` is the range of tokens that may replace another."""

    mask_id: int
    random_ids: tuple[int, int]
    probability: float
    max_predictions: int


def count_masked(length, settings):
    """Returns the number of masked tokens of `length`, at least 1 and at most P."""
    return min(settings.max_predictions, max(1, round(length * settings.probability)))


def draw_masks(ids, allowed, settings, generator, continues=None):
    """Masks tokens of one sequence.

    Args:
        ids: [n] integers, without padding.
        allowed: [n] booleans, False for tokens that are never masked ([CLS], [SEP]).
        continues: [n] booleans, True for a token that continues a word; whole words are then
            masked. None masks single tokens.

    Returns:
        The tokens with masks [n], the ascending positions of masked tokens [k], and the original
        tokens there [k], 0 <= k <= P.
    """
    wanted = count_masked(len(ids), settings)
    candidates = np.flatnonzero(allowed)
    if continues is None:
        chosen = generator.permutation(candidates)[:wanted]
    else:
        chosen = _whole_words(candidates, continues, wanted, generator)
    chosen = np.sort(chosen)
    draws = generator.random(len(chosen))
    random = generator.integers(*settings.random_ids, len(chosen))
    originals = ids[chosen]
    replaced = np.where(draws < MASKED_SHARE + RANDOM_SHARE, random, originals)
    masked = ids.copy()
    masked[chosen] = np.where(draws < MASKED_SHARE, settings.mask_id, replaced)
    return masked, chosen, originals


def _whole_words(candidates, continues, wanted, generator):
    """Selects words in random order, skipping those with more than the remaining tokens."""
    starts = np.flatnonzero(~continues[candidates] | (np.diff(candidates, prepend=-1) > 1))
    words = np.split(candidates, starts[1:]) if len(candidates) else []
    chosen = [candidates[:0]]
    for index in generator.permutation(len(words)):
        if len(words[index]) <= wanted:
            chosen.append(words[index])
            wanted -= len(words[index])
        if not wanted:
            break
    return np.concatenate(chosen)


class TokenMasker:
    """Looks tokens up in a vocabulary and masks them."""

    def __init__(self, section):
        self._section = section
        numbers = read_word_numbers(section.vocab_file, "[UNK]", "[MASK]")
        self._numbers = {token.encode(): number for token, number in numbers.items()}
        mask_id, count = numbers["[MASK]"], len(numbers)
        self._settings = mask_settings(section, mask_id, (0, count))

    def batch(self, number, tokens, lengths):
        """Masks a batch.

        Args:
            tokens: [B, T] bytes.
            lengths: [B] integers, tokens of each row.

        Returns:
            The arrays of `mask_rows`.
        """
        section, numbers = self._section, self._numbers
        rows, allowed, continues = [], [], []
        for row, length in zip(tokens, lengths):
            if length > section.max_sequence_length:
                raise DataError(
                    f"data_dir: each record must have at most {section.max_sequence_length} "
                    f"tokens. Received: {length}. Set max_sequence_length to the length in the "
                    "files."
                )
            words = row[:length].tolist()
            inner = np.array([word not in (b"[CLS]", b"[SEP]") for word in words])
            if section.do_lower:
                words = [w.decode().lower().encode() if i else w for w, i in zip(words, inner)]
            unknown = numbers[b"[UNK]"]
            rows.append(np.array([numbers.get(word, unknown) for word in words], np.int32))
            allowed.append(inner)
            continues.append(np.array([word.startswith(b"##") for word in words]))
        generator = np.random.default_rng([section.shuffle_seed or 0, int(number)])
        whole = continues if section.mask_whole_word else None
        return mask_rows(rows, allowed, whole, self._settings, section, generator)


def mask_settings(section, mask_id, random_ids):
    """Returns the MaskSettings of an input section."""
    return MaskSettings(
        mask_id, random_ids, section.masked_lm_prob, section.max_predictions_per_seq
    )


def mask_rows(rows, allowed, continues, settings, section, generator):
    """Masks rows of tokens and pads them.

    Args:
        rows: B arrays of integers, at most S long.
        allowed: B arrays of booleans, see `draw_masks`.
        continues: B arrays of booleans, or None; see `draw_masks`.

    Returns:
        input_ids, input_mask [B, S] int32, masked_lm_positions, masked_lm_ids [B, P] int32,
        masked_lm_weights [B, P] float32.
    """
    count, length = len(rows), section.max_sequence_length
    ids, mask = np.zeros((count, length), np.int32), np.ones((count, length), np.int32)
    places = np.zeros((count, settings.max_predictions), np.int32)
    words, weights = np.zeros_like(places), np.zeros(places.shape, np.float32)
    for index, row in enumerate(rows):
        whole = None if continues is None else continues[index]
        masked, chosen, originals = draw_masks(row, allowed[index], settings, generator, whole)
        ids[index, : len(row)], mask[index, : len(row)] = masked, 0
        places[index, : len(chosen)], words[index, : len(chosen)] = chosen, originals
        weights[index, : len(chosen)] = 1.0
    return ids, mask, places, words, weights
