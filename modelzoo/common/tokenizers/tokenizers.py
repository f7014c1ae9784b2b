"""Turns text into token numbers and back: GPT-2, GPT-NeoX, BERT, trained and byte vocabularies.

The algorithms are those of the ``tokenizers`` library. It loads no TensorFlow, since it runs in
worker processes. cerebras-tf prepare vocab trains.
"""

import hashlib
import itertools
import json
import re
from pathlib import Path

import numpy as np

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.installing import pip_install
from cerebras_tf.user_files import parse_json, read_bytes, read_json, reason
from modelzoo.common.files.json_text import place
from modelzoo.common.files.path_advice import advice_on_vocabulary, unread
from modelzoo.common.files.text_lines import columns, split

KINDS = ("GPT2Tokenizer", "NeoXTokenizer", "BertTokenizer", "JsonTokenizer", "ByteTokenizer")
# Which algorithm of `cerebras-tf prepare vocab` makes such files.
ALGORITHMS = {
    "GPT2Tokenizer": "byte_bpe",
    "NeoXTokenizer": "byte_bpe",
    "BertTokenizer": "wordpiece",
    "JsonTokenizer": "bpe",
}
END_OF_TEXT = "<|endoftext|>"
# What the tokens with a meaning are called in the vocabularies in use, by attribute.
SPECIAL_TOKENS = {
    "pad": ("<|padding|>", "<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
    "bos": ("<s>",),
    "eos": (END_OF_TEXT, "</s>"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
    "mask": ("[MASK]",),
}
BYTE_END_OF_TEXT = 256
# Where text may be cut without changing its tokens: byte-level encodings begin a new word at a
# single space or line break between two other characters,
SAFE_CUT = re.compile(r"(?<=\S)(?=[ \n]\S)")
# and between a letter and a space or punctuation mark. More cuts make fewer different words.
WORD_CUT = re.compile(r"(?=[ \n,.;:!?\")])(?:(?<=[a-zA-Z])|(?<=\S)(?=[ \n]\S))")
CACHED_WORDS = 1 << 19  # words whose tokens are remembered, about 150 MB
CHUNK_CHARACTERS = 1 << 19  # text that is cut into words at a time
JUDGED_TOKENS = 1000  # of a text, by which it is judged whether a vocabulary has its words
TRANSLATION_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
MAX_EARLY = 0.01  # share of merges that may stand before those that make their parts
NOT_MERGED = re.compile(r"<.*>$|\[.*\]$|madeupword\d+$")

MAX_VOCAB_SIZE = 1 << 31  # tokens are int32


class ByteTokenizer:
    """Every byte is its own token; 256 ends a document.

    Attributes:
        eos_id: 256; all other tokens with a meaning are None.
    """

    source = "ByteTokenizer"
    vocab_size = 257
    eos_id = BYTE_END_OF_TEXT
    pad_id = unk_id = bos_id = cls_id = sep_id = mask_id = None

    @property
    def facts(self):
        """What a manifest holds of the vocabulary; see FileTokenizer."""
        return vocabulary_facts({"ByteTokenizer": self.eos_id})

    def encode(self, text):
        """Returns the tokens of `text`, [n] int32."""
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32)

    def encode_batch(self, texts):
        """Returns the tokens of each text, a list of [n] int32."""
        return [self.encode(text) for text in texts]

    def decode(self, ids):
        """Returns the text of tokens, with U+FFFD where they are no UTF-8; without 256 and more."""
        return bytes(int(i) for i in ids if int(i) < self.eos_id).decode("utf-8", errors="replace")

    def token_id(self, token):
        """Returns the number of a token, None if there is none."""
        return self.eos_id if token == END_OF_TEXT else None


class FileTokenizer:
    """A tokenizer of the ``tokenizers`` library.

    Args:
        library: ``tokenizers.Tokenizer``.
        eos_id: number of the token that ends a document, None to look it up.

    Attributes:
        vocab_size: numbers that tokens may have, special tokens included.
        pad_id, unk_id, bos_id, eos_id, cls_id, sep_id, mask_id: numbers of the tokens named in
            SPECIAL_TOKENS, None for those the vocabulary lacks.
    """

    def __init__(self, library, eos_id=None, source="the vocabulary"):
        library.no_padding()
        library.no_truncation()
        self.source = source
        self.library = library
        self.vocab_size = 1 + max(library.get_vocab().values(), default=-1)
        if self.vocab_size > MAX_VOCAB_SIZE:
            raise ConfigError(
                f"{source}: must have token numbers below {MAX_VOCAB_SIZE}. Received: "
                f"{self.vocab_size - 1}. Copy the file again."
            )
        found = {
            name: next(filter(_is_number, map(library.token_to_id, tokens)), None)
            for name, tokens in SPECIAL_TOKENS.items()
        }
        self.pad_id, self.unk_id, self.bos_id = found["pad"], found["unk"], found["bos"]
        self.cls_id, self.sep_id, self.mask_id = found["cls"], found["sep"], found["mask"]
        self.eos_id = found["eos"] if eos_id is None else eos_id
        self._seen = self._unknown = 0
        self._unspoken = {number for number in {*found.values(), self.eos_id} if _is_number(number)}

    @property
    def facts(self):
        """What a manifest holds of the vocabulary: its size and its digest."""
        return vocabulary_facts(self.library.get_vocab())

    def encode(self, text):
        """Returns the tokens of `text`, [n] int32; none are added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts):
        """Returns the tokens of each text, a list of [n] int32; faster than one by one."""
        encodings = self.library.encode_batch_fast(texts, add_special_tokens=False)
        found = [np.array(encoding.ids, np.int32) for encoding in encodings]
        self._require_words(*found)
        return found

    def encode_with_offsets(self, text):
        """Tokenizes, with the place of each token.

        Returns:
            Tokens [n] int32 and their first and one past last character in `text`, [n, 2] int32.
        """
        encoding = self.library.encode(text, add_special_tokens=False)
        ids = np.array(encoding.ids, np.int32)
        self._require_words(ids)
        return ids, np.array(encoding.offsets, np.int32).reshape(-1, 2)

    def _require_words(self, *found):
        """Refuses text of whose first JUDGED_TOKENS three in four are unknown."""
        if self.unk_id is None or self._seen >= JUDGED_TOKENS:
            return
        self._seen += sum(map(len, found))
        self._unknown += sum(int(np.count_nonzero(ids == self.unk_id)) for ids in found)
        if self._seen >= JUDGED_TOKENS and 4 * self._unknown > 3 * self._seen:
            raise ConfigError(
                f"{self.source}: must be a vocabulary of this text. Received: {self._unknown} of "
                f"its first {self._seen} tokens are unknown. Use the complete file, or a "
                "vocabulary of the text's language."
            )

    def tokens(self, ids):
        """Returns the tokens as they stand in the vocabulary, such as ``##ing``."""
        return [self.library.id_to_token(int(number)) for number in ids]

    def decode(self, ids):
        """Returns the text of tokens, without special tokens and numbers beyond the vocabulary."""
        kept = [int(i) for i in ids if int(i) < self.vocab_size and int(i) not in self._unspoken]
        return self.library.decode(kept, skip_special_tokens=False)

    def token_id(self, token):
        """Returns the number of a token, None if there is none."""
        return self.library.token_to_id(token)


class ByteLevelTokenizer(FileTokenizer):
    """A byte-level byte pair encoding; it remembers the tokens of words it has met.

    Text is cut at WORD_CUT, where no token can cross, so the tokens are those of the library.
    """

    def __init__(self, library, eos_id=None, source="the vocabulary"):
        super().__init__(library, eos_id, source)
        self._words = {}
        # Symbols of bytes that have no token; the library leaves them out of a text.
        alphabet = import_library().pre_tokenizers.ByteLevel.alphabet()
        left_out = getattr(library.model, "unk_token", "") is None  # a unigram model has no such
        known = library.get_vocab() if left_out else alphabet
        self._lacking = set(alphabet).difference(known)

    def encode_batch(self, texts):
        """Returns the tokens of each text, a list of [n] int32."""
        return [self.encode(text) for text in texts]

    def encode(self, text):
        """Returns the tokens of `text`, [n] int32."""
        chunks = [self._encode_chunk(chunk) for chunk in split_text(text, CHUNK_CHARACTERS)]
        return np.concatenate(chunks)

    def _encode_chunk(self, text):
        words = WORD_CUT.split(text)
        known = self._words
        new = [word for word in set(words) if word not in known]
        if len(known) + len(new) > CACHED_WORDS:
            known.clear()
            new = list(set(words))
        for word in new if self._lacking else ():
            self._require_tokens(word)
        encodings = self.library.encode_batch_fast(new, add_special_tokens=False)
        known.update((word, encoding.ids) for word, encoding in zip(new, encodings))
        return np.fromiter(itertools.chain.from_iterable(map(known.__getitem__, words)), np.int32)

    def _require_tokens(self, word):
        symbols = "".join(part for part, _ in self.library.pre_tokenizer.pre_tokenize_str(word))
        lost = self._lacking.intersection(symbols)
        if lost:
            raise ConfigError(
                f"{self.source}: must have tokens for all bytes of the text. Received: "
                f"{word.strip()[:40]!r}, with {len(lost)} that have none and would be dropped; it "
                f"lacks {len(self._lacking)} of the 256 bytes. Use another vocabulary."
            )


def split_text(text, limit):
    """Cuts text at SAFE_CUT, where no byte-level encoding has a token.

    Returns Pieces that join to `text`; at least one.
    """
    pieces, start = [], 0
    while len(text) - start > limit:
        cut = SAFE_CUT.search(text, start + limit)
        if cut is None:
            break
        pieces.append(text[start : cut.start()])
        start = cut.start()
    return [*pieces, text[start:]]


def vocabulary_facts(vocabulary):
    """Describes a vocabulary, so that records of another one can be recognized.

    Returns ``vocab_size``, the numbers that tokens may have, and ``vocabulary_sha256``, in
    hexadecimal, of the tokens and their numbers, however the files write them.
    """
    tokens = json.dumps(sorted(vocabulary.items())).encode()
    return {
        "vocab_size": 1 + max(vocabulary.values(), default=-1),
        "vocabulary_sha256": hashlib.sha256(tokens).hexdigest(),
    }


def check_number(key, number, vocab_size):
    """Raises a ConfigError if a token that is given by its number is none of a vocabulary."""
    if number is not None and not 0 <= number < vocab_size:
        raise ConfigError(
            f"{key}: must be a token id, 0 to {vocab_size - 1}. Received: {number}. Correct it, or "
            "remove it to use the tokenizer's."
        )


def load_tokenizer(kind, vocab_file=None, encoder_file=None, eos_id=None, do_lower_case=True):
    """Loads a tokenizer.

    Args:
        kind: ``GPT2Tokenizer`` (vocabulary in JSON and merges), ``BertTokenizer`` (vocab.txt),
            ``NeoXTokenizer`` or ``JsonTokenizer`` (a tokenizer.json, such as
            ``cerebras-tf prepare vocab`` writes), or ``ByteTokenizer`` (no file).
        encoder_file: the other of GPT-2; which is which is seen from their content.
        eos_id: number of the token that ends a document; None for the vocabulary's own.
        do_lower_case: of BertTokenizer: lower case without accents; see `normalization`.

    Returns:
        A ByteTokenizer, FileTokenizer or ByteLevelTokenizer.
    """
    if kind == "ByteTokenizer":
        if eos_id not in (None, ByteTokenizer.eos_id):
            raise ConfigError(
                f"eos_id: must be {ByteTokenizer.eos_id}, the end-of-text token of ByteTokenizer. "
                f"Received: {eos_id}. Remove it."
            )
        given = vocab_file or encoder_file
        if given:
            raise ConfigError(
                f"tokenizer_type: must be a tokenizer that reads files. Received: {given} for "
                "ByteTokenizer, which reads none. Remove the file, or use another tokenizer."
            )
        return ByteTokenizer()
    if kind not in KINDS:
        raise ConfigError(
            f"tokenizer_type: must be one of {', '.join(KINDS)}. Received: {kind!r}. Use one of "
            "them."
        )
    contents = {path: _read(path, ALGORITHMS[kind]) for path in (vocab_file, encoder_file) if path}
    source = " and ".join(contents)
    if kind == "BertTokenizer":
        return FileTokenizer(_bert(contents, do_lower_case), eos_id, source)
    library = _gpt2(contents) if kind == "GPT2Tokenizer" else _from_json(kind, contents)
    cls = ByteLevelTokenizer if _is_byte_level(library) else FileTokenizer
    return cls(library, eos_id, source)


def require_tokens(tokenizer, *names):
    """Checks that a vocabulary has the special tokens that a preparation needs."""
    missing = [name for name in names if getattr(tokenizer, f"{name}_id") is None]
    if missing:
        given = ", or set --eos_id" if "eos" in missing else ""
        wanted = ", ".join(" or ".join(SPECIAL_TOKENS[name]) for name in missing)
        raise ConfigError(
            f"{tokenizer.source}: must be a vocabulary with the token {wanted}. Received: none "
            f"among its {tokenizer.vocab_size}. Use another vocabulary{given}."
        )


def _is_number(value):
    return value is not None


def import_library():
    """Imports the ``tokenizers`` library."""
    try:
        import tokenizers
    except ImportError as error:
        raise ConfigError(
            "tokenizers: must be installed for vocabularies in files. Received: "
            f"{error}. Run: {pip_install('tokenizers')}"
        ) from error
    return tokenizers


def _gpt2(contents):
    tokenizers = import_library()
    jsons = [path for path, text in contents.items() if text.lstrip().startswith("{")]
    merges = [path for path, text in contents.items() if text.strip() and path not in jsons]
    if len(jsons) != 1 or len(merges) != 1:
        raise ConfigError(
            "GPT2Tokenizer: --encoder_file must be its vocabulary (encoder.json or vocab.json), "
            "and --vocab_file its merges (vocab.bpe or merges.txt). Received: "
            f"{', '.join(contents) or 'no file'}. Set both."
        )
    vocabulary = _parsed(jsons[0], contents[jsons[0]])
    lines = split(contents[merges[0]])
    merged = [line for line in lines if line and not line.startswith("#version")]
    pairs = [tuple(columns(line, " ")) for line in merged]
    check_numbers(jsons[0], vocabulary)
    try:
        for pair in pairs:
            if len(pair) != 2 or not vocabulary.keys() >= {*pair, "".join(pair)}:
                raise ValueError(f"the line {' '.join(pair)!r:.60}")
        model = tokenizers.models.BPE(vocab=vocabulary, merges=pairs)
    except Exception as error:  # the library raises plain Exception and TypeError
        raise ConfigError(
            f"{merges[0]}: each line must contain two tokens of {jsons[0]} whose concatenation is "
            f"also in it. Received: {error}. Use two files of the same tokenizer."
        ) from error
    check_merges(merges[0], pairs, jsons[0], vocabulary)
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    return library


def _from_json(kind, contents):
    tokenizers = import_library()
    for path, text in contents.items():
        model = _parsed(path, text).get("model")
        if model is None:
            continue
        if isinstance(model, dict) and isinstance(model.get("vocab"), dict):
            check_numbers(path, model["vocab"])  # the library takes memory up to the highest
        try:
            return tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises plain Exception
            raise ConfigError(
                f"{path}: must be a tokenizer.json of the tokenizers library. Received: {error}. "
                "Use another file."
            ) from error
    raise ConfigError(
        f"{kind}: must have a tokenizer.json with a model. Received: "
        f"{', '.join(contents) or 'no file'}. Set vocab_file or tokenizer_file to it."
    )


def _bert(contents, do_lower_case):
    tokenizers = import_library()
    if len(contents) != 1:
        raise ConfigError(
            "BertTokenizer: --vocab_file must be a vocab.txt with one token per line. Received: "
            f"{', '.join(contents) or 'no file'}."
        )
    vocabulary = word_numbers(*next(iter(contents.items())), "[UNK]")
    library = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    rules = normalization(next(iter(contents)), do_lower_case)
    library.normalizer = tokenizers.normalizers.BertNormalizer(**rules)
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    library.decoder = tokenizers.decoders.WordPiece(prefix="##")
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    library.add_special_tokens([token for token in special if token in vocabulary])
    return library


# Arguments of BertNormalizer, with their names in tokenizer_config.json.
NORMALIZATION = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars",
}


def normalization_of(folder):
    """Returns those arguments of BertNormalizer that the tokenizer files in a folder specify.

    As in transformers, tokenizer_config.json has precedence over tokenizer.json.

    Raises:
        DataError: a file is damaged.
    """
    config = read_object(folder, "tokenizer_config.json")
    normalizer = read_object(folder, "tokenizer.json").get("normalizer") or {}
    found = {name: config.get(key) for name, key in NORMALIZATION.items()}
    found = {key: normalizer.get(key) if value is None else value for key, value in found.items()}
    return {key: value for key, value in found.items() if isinstance(value, bool)}


def normalization(vocab_file, do_lower_case):
    """Returns the arguments of BertNormalizer for a vocab.txt.

    Files of the tokenizer in its folder specify the others than lower case.
    """
    found = normalization_of(Path(vocab_file).parent)
    return {**usual_normalization(do_lower_case), **found, "lowercase": do_lower_case}


def usual_normalization(do_lower_case):
    """Returns the arguments of BertNormalizer without other files than a vocab.txt."""
    usual = {"strip_accents": do_lower_case, "handle_chinese_chars": True}
    return {"lowercase": do_lower_case, **usual}


def read_object(folder, name):
    """Returns the JSON object in a file, an empty one if it does not exist.

    Raises:
        DataError: it is damaged.
    """
    path = Path(folder, name)
    try:
        return read_json(path, dict) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: must be a JSON object. Received: {reason(error)}. Copy it again, or remove "
            "it."
        ) from error


def _is_byte_level(library):
    """Does `library` keep words apart as WORD_CUT presumes?"""
    described = json.loads(library.to_str())
    words = described.get("pre_tokenizer") or {}
    rewriting = (described.get("normalizer") or {}).get("type", "NFC")
    plain = words.get("use_regex", True) and not words.get("add_prefix_space", True)
    added = [token["content"] for token in described["added_tokens"]]
    whole = not any(map(WORD_CUT.search, added))
    return words.get("type") == "ByteLevel" and plain and rewriting == "NFC" and whole


def _parsed(path, text):
    try:
        return parse_json(text, dict)
    except ValueError as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigError(
            f"{path}{line}: must be a JSON object. Received: {place(error)}. Copy the file again."
        ) from error


def _read(path, algorithm):
    try:
        return read_bytes(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise unread(error)(
            f"{path}: must be a tokenizer file. Received: {error}. "
            f"{advice_on_vocabulary(path, error, algorithm)}"
        ) from error


# ---- files of vocabularies


def word_pieces(text):
    """Returns the tokens of the text of a vocab.txt of BERT, in the order of their numbers."""
    return split(text.rstrip("\r\n"))


def read_word_numbers(path, *required):
    """Returns the numbers of the tokens of a vocab.txt of BERT, which must have those required."""
    return word_numbers(path, _read(path, ALGORITHMS["BertTokenizer"]), *required)


def word_numbers(path, text, *required):
    """Returns the numbers of the tokens of the text of a vocab.txt; see `read_word_numbers`."""
    tokens = word_pieces(text)
    require_tokens_differ(path, tokens)
    numbers = {token: number for number, token in enumerate(tokens)}
    for token in required:
        if token not in numbers:
            raise ConfigError(
                f"{path}: must contain the token {token}. Received: {len(numbers)} tokens, the "
                f"first {tokens[0][:40] if tokens else ''!r}. Use the vocab.txt of a BERT."
            )
    return numbers


def line_tokens(lines):
    """Returns the tokens of a vocabulary for text in tokens, in the order of their numbers.

    Args:
        lines: of its file, a token each; where it lacks the special tokens they come first.
    """
    tokens = [found[0] for line in lines if (found := columns(line))]
    lacks = tokens[: len(TRANSLATION_TOKENS)] != list(TRANSLATION_TOKENS)
    return [*TRANSLATION_TOKENS, *tokens] if lacks else tokens


def require_tokens_differ(path, tokens):
    """Raises a ConfigError if a vocabulary has a token twice."""
    first: dict[str | bytes, int] = {}
    for line, token in enumerate(tokens, start=1):
        before = first.setdefault(token, line)
        if before != line:
            raise ConfigError(
                f"{path}: each token must occur only once. Received: {token[:40]!r} on lines "
                f"{before} and {line}. Copy the file again."
            )


def check_numbers(path, vocabulary):
    """Raises a ConfigError where numbers of tokens are none; some may have no token."""
    limit = 2 * len(vocabulary) + 1024
    of: dict[int, str] = {}
    for token, number in vocabulary.items():
        is_number = type(number) is int and 0 <= number <= limit
        if not is_number or of.setdefault(number, token) != token:
            other = f" and {of[number]!r:.60}" if is_number else ""
            raise ConfigError(
                f"{path}: must have {len(vocabulary)} distinct token ids, 0 to {limit}. Received: "
                f"{number!r:.60} for {token!r:.60}{other}. Copy the file again."
            )


def check_merges(path, pairs, of, vocabulary):
    """Raises a ConfigError where merges do not make the tokens of a vocabulary, in their order.

    Text would get other tokens, all of them valid, and nothing else would notice. The library's
    trainer may write a few pairs late. Tokens that were added by hand need no merges.
    """
    made, early = {token for token in vocabulary if len(token) == 1}, 0
    for pair in pairs:
        early += not made.issuperset(pair)
        made.add("".join(pair))
    lacking = [
        token
        for token in sorted(vocabulary, key=vocabulary.__getitem__)
        if token not in made
        and not NOT_MERGED.match(token)
        and any(token[:i] in vocabulary and token[i:] in vocabulary for i in range(1, len(token)))
    ]
    problem = "a line twice" if len(set(pairs)) < len(pairs) else ""
    if lacking:
        problem = f"none that makes {lacking[0]!r}, one of {len(lacking)} such tokens"
    elif early > MAX_EARLY * len(pairs):
        problem = f"{early} of {len(pairs)} before the lines that make their parts"
    if problem:
        raise ConfigError(
            f"{path}: must contain the merges of all tokens of {of}, in order. Received: "
            f"{problem}. Copy the file again. Write a token that was added later as <name> or "
            "[name]."
        )
