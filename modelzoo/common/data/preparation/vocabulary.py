"""Trains a vocabulary from text with the ``tokenizers`` library.

| algorithm | is | files |
|---|---|---|
| byte_bpe | byte pair encoding of bytes, as in GPT-2 | tokenizer.json, vocab.json, merges.txt |
| wordpiece | WordPiece, as in BERT | tokenizer.json, vocab.txt |
| bpe | byte pair encoding of characters, as for translation | tokenizer.json |
| unigram | unigram language model, as in SentencePiece | tokenizer.json |

``modelzoo/common/tokenizers/tokenizers.py`` reads the files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Optional

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.whole_file import write_whole
from modelzoo.common.data.preparation import documents, input_files, pipeline, records
from modelzoo.common.files import text_lines, text_sources
from modelzoo.common.tokenizers import tokenizers
from modelzoo.common.tokenizers.tokenizers import TRANSLATION_TOKENS

SPECIAL_TOKENS = {
    "byte_bpe": (tokenizers.END_OF_TEXT,),
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "bpe": TRANSLATION_TOKENS,
    "unigram": TRANSLATION_TOKENS,
}
UNKNOWN = {"wordpiece": "[UNK]", "bpe": "<unk>", "unigram": "<unk>"}
BYTES = 256
MIN_FREQUENCY = 2
# The algorithms that have a setting.
OF_ALGORITHMS = {
    "limit_alphabet": ("wordpiece", "bpe"),
    "min_frequency": ("byte_bpe", "wordpiece", "bpe"),
    "do_lower_case": ("wordpiece",),
}


@dataclass(frozen=True)
class VocabularySettings:
    """How a vocabulary is trained.

    `special_tokens` come first, numbered from 0; none given means SPECIAL_TOKENS. Pairs rarer
    than `min_frequency` are not joined, None for MIN_FREQUENCY; a unigram model has no such limit.
    `limit_alphabet` is the largest number of characters, None for all. `do_lower_case` also removes
    accents.
    """

    algorithm: str
    vocab_size: int
    min_frequency: Optional[int] = None
    special_tokens: tuple[str, ...] = field(default=())
    limit_alphabet: Optional[int] = None
    do_lower_case: bool = False
    text_key: str = text_sources.TEXT_KEY


def train(inputs, output_dir, settings, on_progress=lambda size: None):
    """Trains a vocabulary on the lines of text files and writes it.

    Returns:
        The manifest: settings, vocab_size, counts of lines and text_bytes, files with checksums.
    """
    settings = _checked(settings)
    files = input_files.find_inputs(inputs, text_sources.SUFFIXES)
    with records.in_use(output_dir):
        return _train(inputs, files, output_dir, settings, on_progress)


def _train(inputs, files, output_dir, settings, on_progress):
    described = {**vars(settings), "inputs": documents.describe(files)}
    progress = records.Progress(output_dir, described)
    finished = progress.manifest()
    if finished:
        progress.finish({key: value for key, value in finished.items() if key != "settings"})
        return progress.manifest()
    tokenizer, trainer = _untrained(settings)
    counts = {"lines": 0, "text_bytes": 0}
    try:
        tokenizer.train_from_iterator(_lines(files, settings, counts, on_progress), trainer)
    except Exception as error:  # the library raises plain Exception
        if "not large enough to contain all chars" not in str(error):
            raise
        raise ConfigError(
            "vocab_size: must be larger than the number of characters in the text. Received: "
            f"{settings.vocab_size}. Raise it, or use --algorithm bpe with --limit_alphabet."
        ) from error
    if not counts["lines"]:
        raise DataError(f"{', '.join(inputs)}: must contain text. Received: no line. Add text.")
    size = tokenizer.get_vocab_size()
    if size > settings.vocab_size:
        raise ConfigError(
            f"vocab_size: must be at least {size}, the number of this text's "
            f"characters{' (each also as ##c)' if settings.algorithm == 'wordpiece' else ''} and "
            f"special tokens. Received: {settings.vocab_size}. Raise it, or use a smaller "
            "--limit_alphabet."
        )
    texts = {"tokenizer.json": tokenizer.to_str(pretty=True), **_classic_files(tokenizer, settings)}
    written = [_write(progress.folder / name, text) for name, text in texts.items()]
    progress.finish({"vocab_size": size, "counts": counts, "files": written})
    return progress.manifest()


def _checked(settings):
    algorithm, tokens = settings.algorithm, settings.special_tokens
    if algorithm not in SPECIAL_TOKENS:
        raise ConfigError(
            f"algorithm: must be one of {', '.join(SPECIAL_TOKENS)}. Received: {algorithm!r}."
        )
    settings = replace(settings, special_tokens=tuple(tokens) or SPECIAL_TOKENS[algorithm])
    tokens = settings.special_tokens
    unknown = UNKNOWN.get(algorithm)
    if len(set(tokens)) < len(tokens) or (unknown and unknown not in tokens):
        needed = f" and hold {unknown}" if unknown else ""
        raise ConfigError(
            f"special_tokens: must be distinct{needed}. Received: {' '.join(tokens)}. Correct the "
            "list."
        )
    least = len(tokens) + (BYTES if algorithm == "byte_bpe" else 1)
    if settings.vocab_size < least:
        raise ConfigError(
            f"vocab_size: must be at least {least}, for the special tokens and the "
            f"{'bytes' if algorithm == 'byte_bpe' else 'characters'}. Received: "
            f"{settings.vocab_size}. Raise it."
        )
    for key, algorithms in OF_ALGORITHMS.items():
        if getattr(settings, key) not in (None, False) and algorithm not in algorithms:
            raise ConfigError(
                f"{key}: must be used with the algorithms {', '.join(algorithms)}. Received: "
                f"{algorithm}. Remove it."
            )
    return replace(settings, min_frequency=settings.min_frequency or MIN_FREQUENCY)


def _untrained(settings):
    """Returns the tokenizer to train and its trainer."""
    library = tokenizers.import_library()
    models, trainers, unknown = library.models, library.trainers, UNKNOWN.get(settings.algorithm)
    options = {
        "vocab_size": settings.vocab_size,
        "special_tokens": list(settings.special_tokens),
        "show_progress": False,  # its bars do not know how much text there is
    }
    if settings.algorithm == "unigram":
        tokenizer = library.Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(unk_token=unknown, **options)
    else:
        options["min_frequency"] = settings.min_frequency
        if settings.limit_alphabet is not None:
            options["limit_alphabet"] = settings.limit_alphabet
        if settings.algorithm == "wordpiece":
            tokenizer = library.Tokenizer(models.WordPiece(unk_token=unknown))
            trainer = trainers.WordPieceTrainer(continuing_subword_prefix="##", **options)
        else:
            if settings.algorithm == "byte_bpe":
                options["initial_alphabet"] = library.pre_tokenizers.ByteLevel.alphabet()
            tokenizer = library.Tokenizer(models.BPE(unk_token=unknown))
            trainer = trainers.BpeTrainer(**options)
    _set_words(library, tokenizer, settings)
    return tokenizer, trainer


def _set_words(library, tokenizer, settings):
    """Sets how text becomes words, and tokens text again."""
    words, decoders = library.pre_tokenizers, library.decoders
    if settings.algorithm == "byte_bpe":
        tokenizer.pre_tokenizer = words.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    elif settings.algorithm == "wordpiece":
        tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=settings.do_lower_case)
        tokenizer.pre_tokenizer = words.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix="##")
    else:
        tokenizer.normalizer = library.normalizers.NFC()
        tokenizer.pre_tokenizer = words.Metaspace()
        tokenizer.decoder = decoders.Metaspace()


def _lines(files, settings, counts, on_progress):
    # Line ends are tokens of bytes only.
    byte_level = settings.algorithm == "byte_bpe"
    progress = pipeline.InputProgress(on_progress)
    for path in files:
        for text in text_sources.read_documents(path, settings.text_key, on_read=progress.read):
            left = len(text)
            for line in text.split("\n") if byte_level else text_lines.split(text):
                progress.finish(len(line) / max(left, 1))
                left -= len(line) + 1
                if line.strip():
                    counts["lines"] += 1
                    counts["text_bytes"] += len(line.encode("utf-8"))
                    yield f"{line}\n" if byte_level else line
        progress.finish()


def _classic_files(tokenizer, settings):
    """Returns the files that other programs read, by name."""
    ranked = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if settings.algorithm == "wordpiece":
        return {"vocab.txt": "".join(f"{token}\n" for token, _ in ranked)}
    if settings.algorithm == "byte_bpe":
        pairs = json.loads(tokenizer.to_str())["model"]["merges"]
        merges = "".join(" ".join(pair) + "\n" for pair in pairs)
        return {
            "vocab.json": json.dumps(dict(ranked), ensure_ascii=False) + "\n",
            "merges.txt": "#version: 0.2\n" + merges,
        }
    return {}


def _write(path, text):
    write_whole(path, text)
    return {"file": path.name, **records.content_of(path)}
