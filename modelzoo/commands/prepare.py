"""`cerebras-tf prepare`: makes records, or a vocabulary, from raw data.

A kind of preparation has a settings class. Every field of it is an option with the field's type and
default; HELP has the texts. The packages of the models do the work. A preparation that was stopped
continues when the same command is given again.
"""

import argparse
import dataclasses
import functools
import importlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cerebras_tf.api import any_int, any_number, counted, positive_int, progress_bar, seed_int
from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.data.preparation import cnn_dailymail, documents, input_files, records
from modelzoo.common.files import text_sources
from modelzoo.common.files.split_names import refuse_splits
from modelzoo.common.fine_tuning import glue_files
from modelzoo.common.tokenizers import tokenizers

Options = dict[str, dict[str, Any]]
BERT_VOCABULARY = "vocab.txt of a BERT"
LOWER_CASE = "lower case, without accents"
TEXT = ", ".join(text_sources.SUFFIXES)
# Texts of options, by field; those of a kind come first.
HELP = {
    "tokenizer_type": "kind of tokenizer",
    "file_format": "format of the records",
    "algorithm": "how pieces are found; bpe and unigram mark spaces as SentencePiece does",
    "vocab_file": BERT_VOCABULARY,
    "do_lower_case": LOWER_CASE,
    "encoder_file": "vocabulary of GPT-2 (encoder.json)",
    "max_seq_length": "tokens of a record",
    "max_sequence_length": "tokens of a record",
    "short_seq_prob": "share of shortened records",
    "files_per_record": "records of a file",
    "name": "beginning of the file names",
    "output_name": "beginning of the file names",
    "overlap_size": "number of tokens that consecutive records share",
    "eos_id": "id of the end-of-text token (default: the tokenizer's)",
    "text_key": "key or column of the text in .jsonl, .csv, .tsv and .parquet (default: text)",
    "wikitext_detokenize": "undo the word splitting of WikiText",
    # gpt
    "ftfy": "fix wrongly decoded characters with ftfy",
    "ftfy_normalizer": "Unicode normal form with --ftfy (default: NFC)",
    "write_remainder": "also write the last, padded record",
    # bert
    "mlm_only": "single sequences, without next sentence prediction",
    "disable_masking": "with --mlm_only: store tokens, unmasked",
    "dupe_factor": "number of copies with different masks (default: 10, or 1)",
    "min_short_seq_length": "minimum number of tokens of shortened records",
    "masked_lm_prob": "share of masked tokens",
    "max_predictions_per_seq": "maximum number of masked tokens per record",
    "mask_whole_word": "mask all tokens of a word together",
    "allow_cross_document_examples": "with --mlm_only: continue a sequence with the next document",
    "document_separator_token": "token between documents of a sequence",
    "multiple_docs_in_single_file": "files contain several documents",
    "multiple_docs_separator": "line between documents (empty: a blank line)",
    "single_sentence_per_line": "split at line breaks only",
    "spacy_model": "split sentences with this spaCy model instead of rules",
    # bertsum
    "max_cls_tokens": "maximum number of sentences per record",
    "min_sentences_per_sequence": "skip articles with fewer sentences",
    "max_sentences_per_sequence": "maximum number of sentences; further sentences are dropped",
    "min_tokens_per_sentence": "drop sentences with fewer tokens",
    "max_tokens_per_sentence": "cut sentences with more",
    "max_highlight_tokens": "maximum number of tokens of the highlights, for evaluation",
    # glue
    "task": "task that defines columns and labels",
    "text_columns": "one column of text, or two",
    "label_column": "column of the label",
    "labels": "all labels, in the order of their class indices",
    # squad
    "doc_stride": "number of tokens between the starts of two windows of a long paragraph",
    "max_query_length": "tokens of a question",
    "version_2_with_negative": "keep questions without an answer (SQuAD 2.0)",
    # summarization
    "truncate_article": "truncate articles that are too long",
    "sep_id": "token before the abstract (default: a new one)",
    # chat
    "tokenizer": "folder of a transformers tokenizer",
    "chat_template": "file of a Jinja template (default: that of the tokenizer)",
    "no_packing": "one conversation per record, padded",
    # vocab
    "vocab_size": "vocabulary size, including special tokens",
    "min_frequency": "minimum frequency of pairs that are merged (default: 2)",
    "special_tokens": "tokens 0, 1, ... (default: GPT-2's, BERT's or <pad> <unk> <s> </s>)",
    "limit_alphabet": "maximum number of characters (default: all)",
}
MAX_PER_CORE = 16  # worker processes: more only wait for one another
CLOCK_TICK_S = 0.01  # what the system's clock of processor time can resolve


def share(text):
    """Reads a number from 0 to 1."""
    number = any_number(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1. Received: {text!r}.")
    return number


def number_of_processes(text):
    """Reads a whole number from 0 to MAX_PER_CORE for each core."""
    number, most = any_int(text), MAX_PER_CORE * len(os.sched_getaffinity(0))
    if not 0 <= number <= most:
        raise argparse.ArgumentTypeError(
            f"must be 0 to {most} on this computer, {MAX_PER_CORE} for each core. Received: {text}."
        )
    return number


# argparse's settings by the type of a field; a type that is not here is a path or a name.
TYPES: Options = {
    "int": {"type": positive_int},
    "Optional[int]": {"type": positive_int},
    "float": {"type": share},
    "bool": {"action": "store_true"},
    "Optional[tuple]": {"nargs": "+"},
    "tuple[str, ...]": {"nargs": "+", "default": []},
}
FIELDS: Options = {
    **dict.fromkeys(("eos_id", "pad_id", "sep_id", "overlap_size"), {"type": any_int}),
    "seed": {"type": seed_int},
}


@dataclass(frozen=True)
class Kind:
    """A kind of preparation.

    Attributes:
        run: called with the module of `settings`, the options of the settings and the others.
        settings: module and class of the settings, with a colon between.
        fields: argparse's settings of options that do not follow from the field.
    """

    run: Callable[[Any, dict[str, Any], argparse.Namespace], None]
    settings: str = ""
    inputs: Options = field(default_factory=dict)
    fields: Options = field(default_factory=dict)
    output_dir: str = "./data_dir/"

    def load(self) -> tuple[Any, Any]:
        """Returns the module and the settings class."""
        path, _, name = self.settings.partition(":")
        module = importlib.import_module(path)
        return module, getattr(module, name, None)


def add_arguments(parser: argparse.ArgumentParser, kind: str) -> None:
    """Adds the arguments of a kind."""
    chosen = KINDS[kind]
    parser.set_defaults(kind=kind)
    parser.add_argument("--output_dir", default=chosen.output_dir, help="folder of the records")
    words = "number of worker processes; 0: one per core"
    parser.add_argument("--processes", type=number_of_processes, default=0, help=words)
    for name, settings in chosen.inputs.items():
        parser.add_argument(f"--{name}", **settings)
    _, settings_class = chosen.load()
    for each in dataclasses.fields(settings_class) if settings_class else ():
        settings = {"help": HELP.get(each.name)}
        settings |= TYPES.get(str(each.type), {}) | FIELDS.get(each.name, {})
        if each.default is not dataclasses.MISSING:
            settings = {"default": each.default} | settings
        elif "default" not in settings:
            settings["required"] = True
        settings |= chosen.fields.get(each.name, {})
        parser.add_argument(settings.pop("option", f"--{each.name}"), **settings)


def run(args: argparse.Namespace) -> None:
    """Runs the preparation."""
    kind = KINDS[args.kind]
    module, settings_class = kind.load()
    names = [each.name for each in dataclasses.fields(settings_class)] if settings_class else []
    given = {name: vars(args)[name] for name in names}
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
    args.processes = args.processes or len(os.sched_getaffinity(0))
    kind.run(module, given, args)


def tell(line):
    """Prints a line about the input now, before what may fail."""
    print(line, flush=True)


def _count(count, names):
    return f"{count} {names.removesuffix('s') if count == 1 else names}"


def run_preparation(prepare, inputs, output_dir, total=None, unit="B", remedy="Add input."):
    """Runs a preparation under a progress bar and prints what it made and how fast.

    Args:
        prepare: called with a function that takes the amount of input done since its last call;
            returns the manifest of pipeline.prepare.
        total: amount of input, None if it is not known beforehand.
        unit: of `total`; ``B`` is shown in MB.
        remedy: what to do if not one record was made, a sentence.
    """
    started, busy = time.monotonic(), sum(os.times()[:4])
    with progress_bar(total, unit, unit_scale=True) as bar:
        done = 0

        def advance(amount):
            nonlocal done
            done += amount
            bar.update(amount)

        manifest = prepare(advance)
    elapsed_s = max(time.monotonic() - started, CLOCK_TICK_S)
    # Of this process and of its workers, which have ended.
    cpu_s = max(sum(os.times()[:4]) - busy, CLOCK_TICK_S)
    done_counts = ", ".join(_count(count, name) for name, count in manifest["counts"].items())
    if not manifest["counts"]["records"]:
        raise DataError(
            f"{output_dir}: must get at least one record from {records.first_names(inputs)}. "
            f"Received: {done_counts}. {remedy}"
        )
    scale, name = (1e6, "MB") if unit == "B" else (1, unit)
    speed = (
        f"{done / scale / elapsed_s:.1f} {name}/s, {done / scale / cpu_s:.1f} {name} a CPU second"
    )
    print(
        f"{done_counts} in {counted(len(manifest['files']), 'file')} in {output_dir} "
        f"({elapsed_s:.1f} s, "
        f"{speed if done else 'nothing left to do'})"
    )
    return manifest


def _run_text(
    module: Any, settings: Any, args: argparse.Namespace, inputs: list[str], remedy: Any
) -> None:
    """Prepares text files and folders of them."""
    has_key = hasattr(settings, "text_key")
    suffixes = text_sources.SUFFIXES if has_key else cnn_dailymail.SUFFIXES
    files = input_files.find_inputs(inputs, suffixes, tell)
    for folder in filter(os.path.isdir, inputs):
        refuse_splits(folder, input_files.find_inputs(folder, suffixes), "--input_dir")
    if has_key:
        documents.refuse_idle_key(files, settings.text_key)
    make = functools.partial(module.prepare, inputs, args.output_dir, settings, args.processes)
    run_preparation(make, inputs, args.output_dir, sum(map(os.path.getsize, files)), remedy=remedy)


def _run_gpt(module: Any, given: dict[str, Any], args: argparse.Namespace) -> None:
    for key, needed in (("ftfy_normalizer", "ftfy"), ("seed", "short_seq_prob")):
        if given[key] is None:
            del given[key]
        elif not given[needed]:
            raise ConfigError(
                f"--{key}: has no effect without --{needed}. Received: {given[key]}. Set both, or "
                "remove it."
            )
    settings = module.PreparationSettings(**given)
    remedy = f"A record has {settings.max_seq_length} tokens: add text, lower --max_seq_length, "
    remedy += "or use --write_remainder."
    _run_text(module, settings, args, args.input_dir, remedy)


def _run_bert(module: Any, given: dict[str, Any], args: argparse.Namespace) -> None:
    inputs, listings = list(args.input_dir or []), args.metadata_files
    if listings:
        inputs += module.listed_inputs(listings, args.input_files_prefix, tell)
    if not inputs:
        raise ConfigError(
            "--input_dir or --metadata_files: one must be set. Received: neither. Set one of them."
        )
    _run_text(module, module.PreparationSettings(**given), args, inputs, "Add text.")


def _run_bertsum(module: Any, given: dict[str, Any], args: argparse.Namespace) -> None:
    from modelzoo.bert.fine_tuning.extractive_summarization import preparation

    settings = module.EncodingSettings(**given)
    remedy = "Give highlights that share words with their articles, or lower "
    remedy += "--min_sentences_per_sequence or --min_tokens_per_sentence."
    _run_text(preparation, settings, args, args.input_dir, remedy)


def _run_glue(module: Any, given: dict[str, Any], args: argparse.Namespace) -> None:
    settings, wanted = module.Settings(**given), args.data_split_type
    for use in ("train", "eval") if wanted == "all" else (wanted,):
        glue_files.find_files(args.data_dir, use, tell)  # reports a missing part once
        make = functools.partial(
            module.prepare, args.data_dir, use, args.output_dir, settings, args.processes
        )
        run_preparation(make, [args.data_dir], f"{args.output_dir}/{use}", unit="rows")


def _run_ner(module: Any, given: dict[str, Any], args: argparse.Namespace) -> None:
    settings, wanted, out = module.Settings(**given), args.data_split_type, args.output_dir
    splits = list(module.find_splits(args.data_dir)) if wanted == "all" else [wanted]
    for split, names in module.SPLITS.items():
        if wanted == "all" and split not in splits:
            tell(f"{args.data_dir} has no {' or '.join(names)}: {out}/{split} is not made")
    for split in splits:
        make = functools.partial(
            module.prepare, args.data_dir, split, out, settings, args.processes
        )
        run_preparation(make, [args.data_dir], f"{out}/{split}", unit="sentences")


def _run_squad(module: Any, given: dict[str, Any], args: argparse.Namespace) -> None:
    make = functools.partial(
        module.prepare,
        args.input_file,
        args.output_dir,
        module.Settings(**given),
        args.processes,
        articles=args.articles,
    )
    remedy = "Use a file with answers."
    run_preparation(make, [args.input_file], args.output_dir, unit="questions", remedy=remedy)


def _run_summarization(module: Any, given: dict[str, Any], args: argparse.Namespace) -> None:
    from modelzoo.gptj.preparation import write_prompts

    settings = module.SummarizationSettings(**given)
    if args.prompts:
        path, count = write_prompts(args.input_dir, args.output_dir, settings, args.prompts)
        print(f"{counted(count, 'prompt')} in {path}")
        return
    remedy = "Use --truncate_article, or a larger --max_seq_length."
    _run_text(module, settings, args, args.input_dir, remedy)


def _run_translation(module: Any, given: dict[str, Any], args: argparse.Namespace) -> None:
    files = args.source_file, args.target_file

    def make(advance: Callable[[int], None]) -> Any:
        return module.prepare(*files, args.output_dir, args.tokenizer_file, args.processes, advance)

    total = os.path.getsize(files[0]) if os.path.exists(files[0]) else None
    run_preparation(make, files, args.output_dir, total, remedy="Add text.")


def _run_chat(module: Any, given: dict[str, Any], args: argparse.Namespace) -> None:
    settings = module.ChatSettings(**given)
    if args.show:
        for text in module.show(args.input_files, settings, args.show):
            print(text)
        return
    remedy = "Add conversations."

    def make(advance: Callable[[int], None]) -> Any:
        return module.prepare(args.input_files, args.output_dir, settings)

    run_preparation(make, args.input_files, args.output_dir, unit="conversations", remedy=remedy)


def _run_vocab(module: Any, given: dict[str, Any], args: argparse.Namespace) -> None:
    os.environ["RAYON_NUM_THREADS"] = str(args.processes)  # the threads of the tokenizers library
    settings = module.VocabularySettings(**given)
    files = input_files.find_inputs(args.input_files, text_sources.SUFFIXES, tell)
    documents.refuse_idle_key(files, settings.text_key)
    total, started = sum(map(os.path.getsize, files)), time.monotonic()
    with progress_bar(total, "B", text="reading", unit_scale=True) as bar:

        def advance(size: int) -> None:
            bar.update(size)
            if bar.n >= total:
                bar.set_description("finding tokens")

        manifest = module.train(args.input_files, args.output_dir, settings, advance)
    elapsed_s, size = time.monotonic() - started, manifest["vocab_size"]
    short = f" of {settings.vocab_size}: the text has no more" if size < settings.vocab_size else ""
    names = ", ".join(entry["file"] for entry in manifest["files"])
    print(
        f"{size} tokens{short}; from {manifest['counts']['lines']} lines "
        f"({total / 1e6 / elapsed_s:.1f} MB/s); {names} in {args.output_dir} ({elapsed_s:.1f} s)"
    )


def _article_range(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    if not (first.isdigit() and last.isdigit() and int(first) < int(last)):
        raise argparse.ArgumentTypeError("must be two ascending numbers, such as 0:10")
    return int(first), int(last)


def _files(suffixes: tuple[str, ...], required: bool = True) -> dict[str, Any]:
    text = f"files, or folders of them: {', '.join(suffixes)}"
    return {"nargs": "+", "required": required, "help": text}


def _needed(text: str) -> dict[str, Any]:
    return {"required": True, "help": text}


def _split(*names: str) -> dict[str, Any]:
    return {"choices": ["all", *names], "default": "all", "help": "what to make"}


WIKITEXT = {"option": "--wikitext-detokenize"}
FINE_TUNING = "modelzoo.bert.fine_tuning"
KINDS = {
    "gpt": Kind(
        _run_gpt,
        "modelzoo.gpt3.preparation:PreparationSettings",
        {"input_dir": _files(text_sources.SUFFIXES)},
        {
            "tokenizer_type": {"choices": tokenizers.KINDS},
            "vocab_file": {
                "help": "merges of GPT-2 (vocab.bpe), tokenizer.json, or vocab.txt of BERT"
            },
            "pad_id": {"help": "id of the padding token (default: the tokenizer's, or eos_id)"},
            "ftfy_normalizer": {"choices": ("NFC", "NFKC", "NFD", "NFKD", "none"), "default": None},
            "file_format": {"choices": ("tfrecords", "HDF5")},
            "seed": {
                "default": None,
                "help": ("random seed for the lengths of shortened records (default: 0)"),
            },
            "wikitext_detokenize": WIKITEXT,
        },
    ),
    "bert": Kind(
        _run_bert,
        "modelzoo.bert.preparation:PreparationSettings",
        {
            "input_dir": _files(text_sources.SUFFIXES, required=False),
            "metadata_files": {
                "nargs": "+",
                "help": ("files with the path of one text file per line"),
            },
            "input_files_prefix": {
                "type": str,
                "default": "",
                "help": "folder of the files listed in --metadata_files",
            },
        },
        {
            "multiple_docs_separator": {"type": str},
            "overlap_size": {
                "help": ("with --mlm_only: number of tokens that consecutive sequences share")
            },
            "seed": {"help": "of pairs, lengths and masks"},
            "wikitext_detokenize": WIKITEXT,
        },
    ),
    "bertsum": Kind(
        _run_bertsum,
        "modelzoo.common.fine_tuning.article_encoding:EncodingSettings",
        {"input_dir": _files(cnn_dailymail.SUFFIXES)},
    ),
    "glue": Kind(
        _run_glue,
        f"{FINE_TUNING}.classifier.preparation:Settings",
        {
            "data_dir": _needed("folder of train.tsv and dev.tsv (or dev_matched.tsv)"),
            "data_split_type": _split("train", "eval"),
        },
        {
            "task": {"choices": list(glue_files.TASKS), "required": True},
            "do_lower_case": {
                "option": "--no_lower_case",
                "dest": "do_lower_case",
                "action": "store_false",
                "help": "keep case and accents",
            },
        },
    ),
    "ner": Kind(
        _run_ner,
        f"{FINE_TUNING}.token_classifier.preparation:Settings",
        {
            "data_dir": _needed("folder of train.tsv, devel.tsv and test.tsv"),
            "data_split_type": _split("train", "dev", "test"),
        },
    ),
    "squad": Kind(
        _run_squad,
        f"{FINE_TUNING}.question_answering.preparation:Settings",
        {
            "input_file": _needed("SQuAD json with answers"),
            "articles": {
                "type": _article_range,
                "help": "FIRST:END, use only these articles, counted from 0",
            },
        },
    ),
    "summarization": Kind(
        _run_summarization,
        "modelzoo.gptj.preparation:SummarizationSettings",
        {
            "input_dir": _files(cnn_dailymail.SUFFIXES),
            "prompts": {
                "type": positive_int,
                "metavar": "N",
                "help": "write prompts.jsonl for abstracts of up to N tokens, instead of records",
            },
        },
        {
            "tokenizer_type": {
                "choices": tokenizers.KINDS,
                "default": "GPT2Tokenizer",
                "required": False,
            },
            "vocab_file": {"help": "merges of GPT-2 (vocab.bpe), or tokenizer.json"},
            "pad_id": {"help": "id of the padding token (default: eos_id)"},
        },
    ),
    "translation": Kind(
        _run_translation,
        "modelzoo.transformer.preparation",
        {
            "source_file": _needed("source text, one sentence per line"),
            "target_file": _needed("its translation, one sentence per line"),
            "tokenizer_file": _needed("tokenizer.json of both languages"),
        },
    ),
    "chat": Kind(
        _run_chat,
        "modelzoo.hugging_face.preparation:ChatSettings",
        {
            "input_files": _needed("JSON lines files, or folders of them") | {"nargs": "+"},
            "show": {
                "type": positive_int,
                "metavar": "N",
                "help": "print the tokens of the first N conversations with their weights, instead",
            },
        },
    ),
    "vocab": Kind(
        _run_vocab,
        "modelzoo.common.data.preparation.vocabulary:VocabularySettings",
        {"input_files": _needed(f"text files, or folders with {TEXT} files") | {"nargs": "+"}},
        {"algorithm": {"choices": ("byte_bpe", "wordpiece", "bpe", "unigram")}},
        output_dir="./vocab/",
    ),
}
