"""Reads the texts that predict mode reads, by the keys of predict_input."""

import functools

from cerebras_tf.api import get_logger
from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.data.preparation import cnn_dailymail, input_files
from modelzoo.common.fine_tuning import article_encoding, question_encoding
from modelzoo.common.fine_tuning.glue_files import find_files, read_rows
from modelzoo.common.fine_tuning.squad_files import chosen_articles
from modelzoo.common.fine_tuning.squad_files import read_articles as read_squad


def require_predict_keys(section, contents):
    """Raises a ConfigError if a section lacks what prediction from texts needs."""
    for key, named in (("predict_file", contents), ("vocab_file", "the vocab.txt of the model")):
        if getattr(section, key) is None:
            raise ConfigError(
                f"predict_input.{key}: is required for predict mode. Received: None. Set it to "
                f"{named}."
            )


def read_examples(section, use):
    """Reads the rows of an input section.

    Args:
        use: ``train``, ``eval`` or ``predict``; see glue_files.find_files.

    Returns:
        A list of glue_files.Row.
    """
    files = find_files(section.data_dir, use, get_logger().warning)
    return [row for path in files for row in read_rows(path, section.task, use != "predict")]


@functools.lru_cache(maxsize=1)
def read_windows(section):
    """Splits a section's predict_file into windows. The last result is cached.

    Returns a tuple of (Question, (text of the paragraph, Context.offsets), Window), and the id of
    the padding token.
    """
    require_predict_keys(section, "SQuAD's json")
    encoder = question_encoding.WindowEncoder(section.encoding)
    first, last = chosen_articles(section.predict_file, section.articles)
    windows = []
    for article in read_squad(section.predict_file)[first:last]:
        for paragraph in article:
            context = encoder.context(paragraph.context)
            for question in paragraph.questions:
                shown = (paragraph.context, context.offsets)
                windows += [
                    (question, shown, window) for window in encoder.windows(question.text, context)
                ]
    if not windows:
        raise DataError(
            f"{section.predict_file}: must contain at least one question. Received: none in "
            f"articles {first} to {last}. Use another file, or other articles."
        )
    return tuple(windows), encoder.pad_id


@functools.lru_cache(maxsize=1)
def read_articles(section):
    """Encodes the articles of a section's predict_file. The last result is cached.

    Returns a tuple of EncodedArticle and the id of the padding token.
    """
    require_predict_keys(section, "articles")
    encoder = article_encoding.ArticleEncoder(section.encoding)
    files = input_files.find_inputs(section.predict_file, cnn_dailymail.SUFFIXES, get_logger().info)
    rows = (row for path in files for row in cnn_dailymail.read_articles(path))
    return tuple(encoder.encode(*row) for row in rows), encoder.pad_id
