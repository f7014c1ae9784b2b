"""Checks folders of records against params, by the manifest.json of their preparation.

Records are not read here.
"""

import fnmatch
import functools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Optional

from cerebras_tf.api import get_logger
from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.user_files import read_json, read_text, reason
from modelzoo.common.config.input_sections import GptTextDataInput
from modelzoo.common.data.preparation.records import MANIFEST, first_names, lost_file
from modelzoo.common.files.text_lines import split
from modelzoo.common.tokenizers.tokenizer_files import keys_of_section
from modelzoo.common.tokenizers.tokenizers import (
    ByteTokenizer,
    line_tokens,
    load_tokenizer,
    normalization_of,
    usual_normalization,
    vocabulary_facts,
    word_pieces,
)

READ_FILES = ("*.tfrecord*", "*.h5")  # of a folder of records; see tf_records and hdf5_files
BYTES = ByteTokenizer.vocab_size
LINE_KEYS = ("src_vocab_file", "tgt_vocab_file")  # of text in tokens, one for each side of pairs
LENGTH_KEYS = ("max_seq_length", "max_sequence_length")
# A table of embeddings may have rows that no token uses, to be of a round size: those of GPT-J and
# GPT-NeoX have 143 and 155. More than that, or than an eighth, is another vocabulary.
MAX_UNUSED = 1024
UNUSED_SHARE = 8
_NONE = type(None)
_MANIFEST_TYPES = {
    "settings?": {
        **{f"{key}?": (int, _NONE) for key in LENGTH_KEYS},
        "vocabulary?": [list],
        "labels?": ([str], _NONE),
        "normalization?": dict,
        "do_lower_case?": (bool, _NONE),
    },
    "vocab_size?": (int, _NONE),
    "vocabulary_sha256?": (str, _NONE),
    "counts?": {"text_bytes?": (int, _NONE), "tokens?": (int, _NONE)},
    "files?": [{"file": str, "bytes": int, "ends_sha256?": (str, _NONE)}],
}


@dataclass(frozen=True)
class Facts:
    """Facts of a manifest about records; None if the manifest does not have them.

    `made_with` names the file (or files) of the vocabulary whose tokens and numbers have the digest
    `vocabulary_sha256`. `labels` are those of classes or of tagged sentences, in the order of their
    numbers. `tokens_and_bytes` are how many tokens stand for how many bytes of text. `inputs` are
    the SHA-256 of the files that the records were made of by path; of very many files a manifest
    has one digest.
    """

    vocab_size: Optional[int]
    length: Optional[int]
    vocabulary_sha256: Optional[str]
    made_with: Optional[str]
    labels: Optional[list]
    tokens_and_bytes: Optional[tuple[int, int]] = None
    inputs: Optional[dict[str, str]] = None
    lower_case: Optional[bool] = None
    normalization: dict[str, bool] = field(default_factory=dict)


def check_prepared(folders, vocab_sizes, length=None, vocab_file=None):
    """Checks that records are complete, and have the model's vocabulary and sequence length.

    The vocabulary of a folder without a manifest is not known, which is logged.

    Args:
        vocab_sizes: numbers of tokens that the model has, by the key that gives them; None for one
            that is not known.
        length: the input section's max_sequence_length; None where records have no such length.
        vocab_file: the vocab.txt that the input section names, or None.
    """
    for folder in folders:
        facts = read_facts(folder)
        if facts is None:
            _log_unchecked(str(folder))
            continue
        check_listed(folder)
        own_size, own_length = facts.vocab_size, facts.length
        wrong = []
        for key, vocab_size in vocab_sizes.items():
            if (
                own_size is not None
                and vocab_size is not None
                and is_other_size(own_size, vocab_size)
            ):
                wrong.append(f"a vocabulary of {own_size} tokens, but {key} is {vocab_size}")
        if None not in (own_length, length) and own_length != length:
            wrong.append(f"sequences of {own_length} tokens, but max_sequence_length is {length}")
        if wrong:
            raise DataError(
                f"{folder}: must contain records of the model's vocabulary and sequence length. "
                f"Received: {', '.join(wrong)}, by its {MANIFEST}. Use another data_dir, prepare "
                "the records again, or set these keys to match the records."
            )
    known = Tokens()
    known.compare("", vocab_file, _digests_of(vocab_file))
    known.compare_records(folders)


def check_listed(folder):
    """Checks that a folder has the files of records that its manifest lists, and no others."""
    folder = Path(folder)
    manifest = _manifest_of(folder)
    if "files" not in manifest:
        return
    problem, advice = lost_file(folder, manifest), "Restore it, or make the records again."
    if not problem:
        listed = {entry["file"] for entry in manifest["files"]}
        reads = [read for read in READ_FILES if fnmatch.filter(listed, read)]
        found = {path.name for read in reads for path in folder.glob(read)} - listed
        others = sorted(name for name in found if not name.startswith("."))
        problem = f"{first_names(others)} as well" if others else None
        advice = f"Remove the added files, or remove {MANIFEST} to read all files."
    if problem:
        raise DataError(
            f"{folder}: must contain exactly the record files that its {MANIFEST} lists. Received: "
            f"{problem}. {advice}"
        )


@dataclass
class Tokens:
    """The common vocabulary of several sources: name and digest, if known."""

    name: Optional[str] = None
    digest: Optional[str] = None

    def compare(self, where, name, digests):
        """Raises a DataError if the vocabulary `name`, with one of these digests, is another one.

        A vocabulary without digests is not known, and not compared.
        """
        if self.digest is None:
            self.name, self.digest = name, next(iter(digests), None)
        elif digests and self.digest not in digests:
            raise DataError(
                f"{where} must contain the tokens of {self.name}, under the same numbers. "
                f"Received: those of {name}. Use the vocabulary of training, or prepare the "
                "records again."
            )

    def compare_records(self, folders):
        """Compares the vocabularies that folders of records were made with, by their manifests."""
        for folder in folders:
            facts = read_facts(folder)
            digests = [facts.vocabulary_sha256] if facts and facts.vocabulary_sha256 else []
            if digests:
                name = f"{facts.made_with}, as {folder}"
                self.compare(f"{folder}: its records, by {MANIFEST},", name, digests)


def check_sections(sections, classes=None):
    """Checks that input sections have one vocabulary and one order of labels.

    Args:
        sections: input sections.
        classes: number of labels of the model; None where it has none.
    """
    folders = [folder for section in sections for folder in _folders(section)]
    tokens = Tokens()
    tokens.compare_records(folders)
    known = [facts for facts in map(read_facts, folders) if facts and facts.vocabulary_sha256]
    size = known[0].vocab_size if known else None
    for section in sections:
        for key, path, digests in _own_vocabularies(section, size):
            tokens.compare(f"{path}: {key}", path, digests)
    for key in LINE_KEYS:
        side = replace(tokens)
        for path in filter(None, (getattr(section, key, None) for section in sections)):
            side.compare(f"{path}: {key}", path, _line_digests(path))
    check_labels(sections, classes)


def find_vocabularies(section):
    """Finds the vocabularies of an input section.

    Returns name and digest of each, by its source: "records", or a key. Unknown ones are skipped.
    """
    records = Tokens()
    records.compare_records(_folders(section))
    found = {"records": (records.name, records.digest)} if records.digest else {}
    lines = [(key, getattr(section, key, None)) for key in LINE_KEYS]
    lined = [(key, path, _line_digests(path)) for key, path in lines]
    for key, path, digests in [*_own_vocabularies(section, None), *lined]:
        if digests:
            found[key] = path, digests[0]
    return found


def check_labels(sections, classes=None):
    """Checks that the labels of sections to classify have one order, by manifests and keys.

    The names of tags are compared with their label_vocab_file, where they are read.

    Args:
        classes: number of labels of the model; None if it is not known.
    """
    name, expected = None, None
    for section in sections:
        has_tags = hasattr(section, "label_vocab_file")
        found = [(folder, read_facts(folder)) for folder in _folders(section)]
        labelled = [(folder, facts.labels) for folder, facts in found if facts and facts.labels]
        if task := getattr(section, "task", None):
            labelled.append(
                (f"{section.data_dir} with {section.data_processor}", list(task.labels))
            )
        for where, labels in labelled:
            if classes not in (None, len(labels)):
                raise DataError(
                    f"{where}: must have as many labels as the model, {classes}. Received: "
                    f"{', '.join(labels)}. Use other data, or set the number of labels in the "
                    f"section model to {len(labels)}."
                )
            if has_tags:
                continue
            if expected is None:
                name, expected = where, labels
            elif labels != expected:
                raise DataError(
                    f"{where}: must have the labels of {name}, under the same numbers: "
                    f"{', '.join(expected)}. Received: {', '.join(labels)}. Use other data, or "
                    f"prepare the records with --labels {' '.join(expected)}."
                )


def known_labels(section):
    """Returns the labels of an input section in the order of their numbers, None if unknown."""
    if path := getattr(section, "label_vocab_file", None):
        try:
            numbers = read_json(path, {str: (int, str)}, "utf-8-sig")
            return sorted(numbers, key=lambda name: int(numbers[name]))
        except (OSError, ValueError):
            return None
    if task := getattr(section, "task", None):
        return list(task.labels)
    found = [facts.labels for facts in map(read_facts, _folders(section)) if facts]
    return next(filter(None, found), None)


OF_VOCABULARY = (
    "Use a vocab_file in a folder with the tokenizer_config.json of the model, also to prepare "
    "records."
)
# What a BERT's tokenizer does to text, and how to correct it.
NORMALIZED_AS = {
    "lowercase": (
        "lower-case text",
        "Set the key do_lower or do_lower_case of the input sections, or prepare the records again "
        "{} --do_lower_case.",
    ),
    "strip_accents": ("strip accents", OF_VOCABULARY),
    "handle_chinese_chars": ("separate Chinese characters", OF_VOCABULARY),
}


def check_normalization(sections, folder):
    """Checks that all texts of a BERT have one form: by tokenizer, records and keys.

    It is whether text is lower-cased, whether accents are stripped, and whether Chinese characters
    are words.

    Args:
        sections: input sections by name.
        folder: where the tokenizer files of the model may be, or None.
    """
    known = []
    for name, section in sections.items():
        known += [(f"{name}.{key}", form) for key, form in _form_of_text(section)]
        # With do_lower, tokens of records are lower-cased after they are read.
        for records in () if getattr(section, "do_lower", False) else _folders(section):
            if (facts := read_facts(records)) and facts.lower_case is not None:
                form = _form(facts.lower_case, facts.normalization)
                known.append((f"{records}, by its {MANIFEST}", form))
    if known and folder and (found := normalization_of(folder)):
        known.insert(0, (f"the tokenizer in {folder}", _form(found.get("lowercase"), found)))
    for key, (does, advice) in NORMALIZED_AS.items():
        same = [(name, form[key]) for name, form in known if form[key] is not None]
        for name, value in same[1:]:
            first, expected = same[0]
            if value != expected:
                raise DataError(
                    f"{name}: must {does} as {first} does: {expected}. Received: {value}. "
                    f"{advice.format('with' if expected else 'without')}"
                )


def _form(lower_case, given):
    """Returns the arguments of BertNormalizer, None where unknown."""
    return {**usual_normalization(lower_case), **given, "lowercase": lower_case}


def _form_of_text(section):
    """Yields the key by which a section lower-cases the text that it reads, and the text's form."""
    if hasattr(section, "do_lower"):
        # The records of a dynamic mask may be lower-cased already.
        if hasattr(section, "text_columns"):
            yield "do_lower", _form(section.do_lower, _near_vocabulary(section))
        elif section.do_lower:
            yield "do_lower", {**dict.fromkeys(NORMALIZED_AS), "lowercase": True}
    elif getattr(section, "predict_file", None):
        lower_case = getattr(section, "do_lower_case", None)
        if lower_case is not None:
            yield "do_lower_case", _form(lower_case, _near_vocabulary(section))


def _near_vocabulary(section):
    path = getattr(section, "vocab_file", None)
    return normalization_of(Path(path).parent) if path else {}


def _folders(section):
    file = getattr(section, "data_file", None)
    given = getattr(section, "data_dir", None) or ([str(Path(file).parent)] if file else [])
    return [given] if isinstance(given, str) else given


def _own_vocabularies(section, size):
    """Yields key, path and digests of the vocabulary that a section names, if any.

    Only the first `size` tokens of a tokenizer count, those that records use; the last of them may
    be a separator that no file has. Without digests, the reader of the file raises the error.
    """
    kind = getattr(section, "tokenizer_type", None)
    joint = getattr(section, "tokenizer_file", None)
    path = getattr(section, "vocab_file", None)
    if joint:
        yield "tokenizer_file", joint, _tokenizer_digests(size, "JsonTokenizer", joint)
    elif kind:
        encoder = section.encoder_file
        reads = kind != "ByteTokenizer"
        named = " and ".join(filter(None, (path, encoder))) if path and reads else kind
        key = "vocab_file" if path and reads else "tokenizer_type"
        yield key, named, _tokenizer_digests(size, kind, path, encoder)
    elif path:
        yield "vocab_file", path, _digests_of(path)
    elif getattr(section, "tokenizer", None):
        keys = keys_of_section(section)
        named = " and ".join(map(str, keys.files()))
        files = keys.vocab_file, keys.encoder_file
        yield "tokenizer", named, _tokenizer_digests(size, keys.tokenizer_type, *files)
    elif isinstance(section, GptTextDataInput) and not is_other_size(BYTES, section.vocab_size):
        processor = section.data_processor
        yield "data_processor", processor, _tokenizer_digests(None, "ByteTokenizer")


def _tokenizer_digests(size, *files):
    try:
        tokenizer = load_tokenizer(*files)
    except (ConfigError, DataError):
        return []
    if size is None or not hasattr(tokenizer, "library"):
        return [tokenizer.facts["vocabulary_sha256"]]
    known = tokenizer.library.get_vocab()
    firsts = [{k: v for k, v in known.items() if v < end} for end in (size, size - 1)]
    return [vocabulary_facts(tokens)["vocabulary_sha256"] for tokens in firsts]


def _digests_of(vocab_file):
    text = _text_of(vocab_file)
    return [] if text is None else [_digest(word_pieces(text))]


def _line_digests(path):
    text = _text_of(path)
    return [] if text is None else [_digest(line_tokens(split(text)))]


def _digest(tokens):
    numbers = {token: number for number, token in enumerate(tokens)}
    return vocabulary_facts(numbers)["vocabulary_sha256"]


def _text_of(path):
    try:
        return read_text(path or "", "utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None


def check_tokens(where, tokens, vocab_size):
    """Checks that tokens are in the model's vocabulary, also without a manifest.

    Args:
        vocab_size: tokens that the model has; None where it is not known.
    """
    largest = max(tokens, default=0)
    if vocab_size is not None and largest >= vocab_size:
        raise DataError(
            f"{where}: must contain tokens below vocab_size, {vocab_size}. Received: {largest}. "
            "Use another data_dir, or prepare the records again with the vocabulary of the model."
        )


def is_other_size(records, model):
    """Whether a vocabulary of `records` tokens is another one than the model's."""
    unused = model - records
    return not 0 <= unused <= min(MAX_UNUSED, records // UNUSED_SHARE)


def read_facts(folder):
    """Returns the Facts of a folder, or None where it has no manifest of a preparation."""
    try:
        manifest = _manifest_of(folder)
        if "settings" not in manifest:
            return None
        settings = manifest["settings"]
        lengths = [settings[key] for key in LENGTH_KEYS if settings.get(key) is not None]
        size = manifest.get("vocab_size")
        files = [str(each[0]) for each in settings.get("vocabulary", ()) if each]
        return Facts(
            size,
            next(iter(lengths), None),
            manifest.get("vocabulary_sha256"),
            " and ".join(files) or "the 256 bytes",
            settings.get("labels"),
            _tokens_and_bytes(manifest.get("counts", {})),
            _inputs(settings),
            settings.get("do_lower_case"),
            dict(settings.get("normalization", {})),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None


def _manifest_of(folder):
    path = Path(folder, MANIFEST)
    try:
        return read_json(path, _MANIFEST_TYPES)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: must be what a preparation wrote. Received: {reason(error)}. Restore it, or "
            "make the records again."
        ) from error


def _inputs(settings):
    inputs = settings.get("inputs")
    if not isinstance(inputs, list):
        return None
    return {str(each[0]): str(each[-1]) for each in inputs if isinstance(each, list) and each}


def _tokens_and_bytes(counts):
    text_bytes, tokens = counts.get("text_bytes"), counts.get("tokens")
    return (tokens, text_bytes) if tokens and text_bytes else None


@functools.cache  # one line a folder and run
def _log_unchecked(folder):
    get_logger().info("%s: no %s, so the vocabulary of its records is unknown", folder, MANIFEST)
