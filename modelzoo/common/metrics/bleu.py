"""BLEU of a translated corpus, by sacrebleu. The formula is sacreBLEU's.

Source: Post, A Call for Clarity in Reporting BLEU Scores (2018).
"""

from typing import NamedTuple

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.installing import pip_install


class Bleu(NamedTuple):
    """A score from 0 to 100, and sacrebleu's signature, which says how it was computed."""

    score: float
    signature: str


def corpus_bleu(translations, references, lowercase=False, tokenizer="13a"):
    """Computes the BLEU of a corpus with one reference a sentence.

    Args:
        tokenizer: sacrebleu's; ``13a`` is WMT's, ``none`` for text that is tokenized on purpose.

    Returns:
        A Bleu.

    Raises:
        ConfigError: if sacrebleu is missing.
        DataError: if the two differ in number, or there are none.
    """
    try:
        from sacrebleu.metrics import BLEU
    except ImportError as error:
        raise ConfigError(
            f"corpus_bleu: sacrebleu must be installed. Received: {error}. Run: "
            f"{pip_install('sacrebleu')}"
        ) from error
    if len(translations) != len(references) or not references:
        raise DataError(
            "corpus_bleu: every translation must have one reference. Received: "
            f"{len(translations)} translations, {len(references)} references. Pass as many of each."
        )
    metric = BLEU(lowercase=lowercase, tokenize=tokenizer, force=True)
    result = metric.corpus_score(list(translations), [list(references)])
    return Bleu(result.score, str(metric.get_signature()))
