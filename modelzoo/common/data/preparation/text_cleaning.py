"""Corrects text before it is tokenized: broken encodings, and the spacing of WikiText.

No document is removed.
"""

import re

from cerebras_tf.errors import ConfigError
from cerebras_tf.installing import pip_install

# Published WikiText is split into words. Pairs of pattern and replacement, in order.
WIKITEXT_RULES = [
    (re.compile(pattern), written)
    for pattern, written in (
        (r" @([-.,])@ ", r"\1"),  # inside numbers and compounds
        (r"(?<=\n) (?==)", ""),  # lines begin with a space
        (r" = ([^\n=]*?) = ?(?=\n)", r" = \1 ="),  # headings keep their signs
        (r"(?<=\w) ('(?:s|t|re|ve|m|ll|d)\b)", r"\1"),  # it 's
        (r"(?<=s) ' (?=\w)", "' "),  # the dogs ' tails
        (r" ([,.;:!?%](?=[\s\"')\]]|$))", r"\1"),
        (r"([(\[{]) +", r"\1"),
        (r" +([)\]}])", r"\1"),
        (r'" ([^"\n]*?) "', r'"\1"'),
        (r"([$£€]) (?=\d)", r"\1"),
        (r"(?<=\d) ([/–]) (?=\d)", r"\1"),
        (r" +\n", "\n"),
        (r"\n +", "\n"),
    )
]


def detokenize_wikitext(text):
    """Undoes the splitting of WikiText into words, as far as it can be inferred."""
    for pattern, written in WIKITEXT_RULES:
        text = pattern.sub(written, text)
    return text


def clean(text, unicode_form=None, wikitext=False):
    """Corrects text.

    Args:
        unicode_form: None leaves the characters alone; otherwise ftfy corrects wrongly decoded ones
            and brings the text into this normal form (NFC, NFKC, NFD, NFKD; ``none`` for no form).

    Returns:
        The corrected text.
    """
    if unicode_form is not None:
        try:
            import ftfy
        except ImportError as error:
            raise ConfigError(
                f"--ftfy: needs the package ftfy. Received: {error}. Run: {pip_install('ftfy')}"
            ) from error
        form = None if unicode_form == "none" else unicode_form
        text = ftfy.fix_text(text, normalization=form)
    return detokenize_wikitext(text) if wikitext else text
