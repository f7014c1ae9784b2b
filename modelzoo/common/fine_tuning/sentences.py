"""Splits text into documents and documents into sentences."""

import functools
import re

from cerebras_tf.errors import ConfigError
from cerebras_tf.installing import pip_install, run_python
from modelzoo.common.files import text_lines

# A sentence ends with its mark and closing quotes, before a space and what may begin another.
END = re.compile(r"[.!?]+[\"'”’)\]]*\s+(?=[\"'“‘(\[]*\s?[^\W_a-z])")
# The full stop of an initial or of one of these ends no sentence.
ABBREVIATION = re.compile(
    r"(?:\b[A-Z]|\b(?:Mr|Mrs|Ms|Dr|Prof|St|Gen|Col|Sgt|Lt|Capt|Rev|Sen|Rep|Gov|Jr|Sr|No|Fig|Eq|vs"
    r"|cf|al|etc|e\.g|i\.e|approx|Inc|Ltd|Co|Corp)) ?\.$"
)


def split_sentences(text):
    """Splits text by rules: after ``.``, ``!`` or ``?`` before a capital or a digit, and at lines.

    Initials and common abbreviations do not end a sentence. Tokenized text, such as ``The end .
    It``, is supported.

    Returns:
        The sentences, without blank ones.
    """
    sentences = []
    for line in text_lines.split(text):
        start = 0
        for match in END.finditer(line):
            if ABBREVIATION.search(line[start : match.end()].rstrip()):
                continue
            sentences.append(line[start : match.end()])
            start = match.end()
        sentences.append(line[start:])
    return [sentence.strip() for sentence in sentences if sentence.strip()]


def split_lines(text):
    """Returns the lines of text with one sentence in each line, without blank ones."""
    return [line.strip() for line in text_lines.split(text) if line.strip()]


@functools.lru_cache(maxsize=1)
def spacy_splitter(model):
    """Makes a function like `split_sentences` from a spaCy model, such as ``en_core_web_sm``."""
    try:
        import spacy

        pipeline = spacy.load(model)
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"--spacy_model {model}: spacy and this model must be installed. Received: {error}. "
            f"Run `{pip_install('spacy')} && {run_python(f'-m spacy download {model}')}`."
        ) from error

    def split(text):
        sentences = (sentence.text.strip() for sentence in pipeline(text).sents)
        return [sentence for sentence in sentences if sentence]

    return split


def split_documents(text, separator=""):
    """Splits text into documents at lines equal to `separator`; returns those not blank.

    Lines end with LF, so a CR within a line is replaced with a space.
    """
    parts: list[str] = []
    lines: list[str] = []
    for line in text_lines.split(text):
        if line.strip() == separator:
            parts.append("\n".join(lines))
            lines = []
        else:
            lines.append(line.replace(text_lines.CR, " "))
    parts.append("\n".join(lines))
    return [part for part in parts if part.strip()]
