"""Writes the reference pages of the params files from the dataclasses that check them.

``python -m modelzoo.common.config.reference`` writes a page a section below ``docs/reference/yaml``
and the list of ``configs/README.md``; a test compares them.
"""

import argparse
import dataclasses
import inspect
import sys
import typing
from pathlib import Path

import yaml

from cerebras_tf.api import run_main
from cerebras_tf.config import schema
from cerebras_tf.whole_file import write_whole
from modelzoo.common.config import original, registry
from modelzoo.common.config.params import read_yaml

ROOT = Path(__file__).resolve().parents[3]
FOLDER = "docs/reference/yaml"
SHARED = ("runconfig", "csconfig", "optimizer", "sparsity")  # sections that all models share
BUILT_BY = "<!-- Written by `python -m modelzoo.common.config.reference`. Do not edit. -->\n"
INDEX = """\
# Params files

A params file is a YAML file that describes a model and its run. Each section has a page:

{pages}

The top-level key `model_name` is a package of `modelzoo`, such as `gpt3` or
`bert.fine_tuning.classifier`. Without it, the file's keys or folder determine the model, or
`--model` sets it.

Values are taken from, in this order: the command line, the file, the section that a section
inherits from, the default. A key without a default is required. An unknown key is an error.

On the command line, flags such as `--max_steps` set keys of `runconfig`, and `--set` sets any key:

```
cerebras-tf train -p params.yaml --set model.hidden_size=64 --set train_input.batch_size=8
```

The value is parsed as YAML, for example `null`, `true`, `[1, 2]` or
`{{name: constant, value: 0.5}}`. It is checked like a value of the file, and saved in `params.yaml`
in the model folder. `--set` can be repeated. A list is replaced as a whole.

Numbers are decimal: `010` is 10. Relative paths are searched in the current folder, in the folder
of the params file, and in its parent folders up to the root of the checkout.
"""
UNREAD = """\
# Keys of the original zoo

Params files of the original zoo may contain these keys. They change no number, and are listed in
one line at the start of a run. Another value than the one in the table is an error. Models include
their fine-tunings. See [Params files of the original zoo](../../guides/original-params.md).

| key | models | value | why it has no effect |
|---|---|---|---|
"""
CONFIGS = """\
# Params files

The keys of these files are described in [docs/reference/yaml](../docs/reference/yaml/index.md).
`cerebras-tf configs copy NAME` copies a file to the current folder, where NAME is the file's name
without `params_` and `.yaml`.

| file | model | what it is |
|---|---|---|
"""


def write_pages(argv):
    """Writes all pages."""
    argparse.ArgumentParser(
        prog="modelzoo.common.config.reference", description=__doc__
    ).parse_args(argv)
    for path, text in pages().items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(ROOT / path, text)
        print(f"wrote {path}")


def pages():
    """Returns the text of every page, by its path from the root of the repository."""
    models = {
        name: registry.params_class(name, where="reference")
        for name in (*registry.model_names(), *registry.TORCH_MODELS)
    }
    shared = next(iter(models.values()))
    texts = {name: shared_page(shared, name) for name in SHARED}
    texts |= {name: shared_page(models["hf_causal_lm"], name) for name in ("lora", "export")}
    texts["model"] = model_page(models)
    texts["input"] = input_page(models)
    texts["original"] = BUILT_BY + UNREAD + "".join(unread_rows())
    entries = "\n".join(f"- [{title(text)}]({name}.md)" for name, text in texts.items())
    texts["index"] = BUILT_BY + INDEX.format(pages=entries)
    return {f"{FOLDER}/{name}.md": text for name, text in texts.items()} | {
        "configs/README.md": BUILT_BY + CONFIGS + "".join(config_rows())
    }


def title(text):
    """Returns the title of a page."""
    return next(line for line in text.splitlines() if line.startswith("# "))[2:]


def config_rows():
    """Yields a row for each params file of the repository."""
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        model = read_yaml(path)[0]["model_name"]
        page = f"../modelzoo/{registry.folder_of(model)}/README.md"
        yield f"| `{path.name}` | [{model}]({page}) | {registry.summary(path)} |\n"


def unread_rows():
    """Yields a row for each key without effect."""
    for each in original.UNREAD_KEYS:
        section = "*_input" if each.section == "input" else each.section
        models = ", ".join(f"`{name}`" for name in each.models)
        yield f"| `{section}.{each.key}` | {models} | {each.allowed or 'any'} | {each.reason} |\n"


def shared_page(cls, section):
    """Returns the page of a section that all models share."""
    tables = Tables("##")
    tables.named(section_classes(cls, section))
    return "".join([BUILT_BY, f"# `{section}`\n", *tables.texts(titled=False)])


def model_page(models):
    """Returns the page of the section ``model``."""
    parts = [BUILT_BY, "# `model`\n\nThe keys depend on the model.\n"]
    tables = Tables("##")
    for name, cls in models.items():
        parts.append(f"\n- {name}: {', '.join(tables.named(section_classes(cls, 'model')))}")
    return "".join([*parts, "\n", *tables.texts()])


def input_page(models):
    """Returns the page of the input sections."""
    parts = [
        BUILT_BY,
        "# `train_input`, `eval_input`, `predict_input`\n\n",
        "The `data_processor` of an input section determines its keys. `eval_input` inherits the "
        "keys listed below from `train_input`. If their data processors differ, it inherits only "
        "`vocab_size`, `vocab_file`, `max_sequence_length` and `batch_size`. `shuffle` and "
        "`repeat` of `eval_input` are False. `predict_input` inherits all keys of `eval_input`.\n",
    ]
    tables = Tables("###")
    for name, cls in models.items():
        parts.append(f"\n## {name}\n\n")
        by_classes: dict[str, list[str]] = {}
        for section in ("train_input", "eval_input", "predict_input"):
            text = ", ".join(tables.named(section_classes(cls, section)))
            by_classes.setdefault(text, []).append(section)
        for text, sections in by_classes.items():
            parts.append(f"- {', '.join(f'`{one}`' for one in sections)}: {text}\n")
        inherited = ", ".join(f"`{key}`" for key in cls.INHERITED_KEYS)
        parts.append(f"- `eval_input` inherits: {inherited}\n")
        if not cls.PREDICTS_EVAL_INPUT:
            parts.append("- predict mode requires a section `predict_input`\n")
    return "".join([*parts, "\n## Tables\n", *tables.texts()])


def section_classes(cls, name):
    """Returns the dataclasses that a section may be, by the value that picks them."""
    field = next(field for field in dataclasses.fields(cls) if field.name == name)
    hint = typing.get_type_hints(cls)[name]
    if dataclasses.is_dataclass(hint):
        return {"": hint}
    return dict(getattr(field.metadata.get("build"), "classes", {}))


class Tables:
    """The tables of a page, each once, in the order in which they were named."""

    def __init__(self, level):
        self._level = level
        self._order = []

    def named(self, classes):
        """Returns links to the tables of classes, with the values that pick them."""
        by_class: dict[type, list[str]] = {}
        for value, cls in classes.items():
            by_class.setdefault(cls, []).append(value)
        return [
            (f"{', '.join(f'`{value}`' for value in values)}: " if any(values) else "")
            + self.link(cls)
            for cls, values in by_class.items()
        ]

    def link(self, cls):
        """Returns a link to the table of a class."""
        if cls not in self._order:
            self._order.append(cls)
        return f"[{cls.__name__}](#{cls.__name__.lower()})"

    def texts(self, titled=True):
        """Yields the tables; those that a table names follow."""
        for at, cls in enumerate(self._order):  # grows while links are made
            if titled or at:
                yield f"\n{self._level} {cls.__name__}\n"
            yield f"\n{inspect.getdoc(cls)}\n\n"
            hints, fields = typing.get_type_hints(cls), dataclasses.fields(cls)
            described = any(field.metadata.get("text") for field in fields)
            yield f"| key | type | default |{' what it does |' if described else ''}\n"
            yield f"|---|---|---|{'---|' if described else ''}\n"
            for field in fields:
                cells = [f"`{field.name}`", self._values(field, hints[field.name]), _default(field)]
                if described:
                    cells.append(_description(field))
                yield f"| {' | '.join(cells)} |\n"

    def _values(self, field, hint):
        """Returns what a key takes."""
        words = [self._type(field, hint)]
        if "choices" in field.metadata:
            words.append(f"one of {', '.join(f'`{item}`' for item in field.metadata['choices'])}")
        for key, text in (("minimum", "at least"), ("above", "above"), ("below", "below")):
            if key in field.metadata:
                words.append(f"{text} {field.metadata[key]:g}")
        return ", ".join(words)

    def _type(self, field, hint):
        build = field.metadata.get("build")
        if build is None:
            if dataclasses.is_dataclass(hint):
                return self.link(hint)
            text = schema.type_words(hint)
            return f"{text} (a path)" if field.metadata.get("path") else text
        words = getattr(build, "words", "a section")
        null = " or null" if field.default is None else ""
        classes = getattr(build, "classes", None)
        if not classes:
            return words + null
        tag = getattr(build, "tag", "")
        picked = f", by `{tag}`" if tag else ""
        return f"{words}{null}{picked}: {', '.join(self.named(classes))}"


def _default(field):
    if field.default is dataclasses.MISSING:
        return "required"
    plain = schema.as_tree(field.default)
    text = yaml.safe_dump(plain, default_flow_style=True, width=10**6).split("\n...")[0]
    return f"`{text.strip()}`"


def _description(field):
    flags = [f"`{field.metadata['short']}`"] if "short" in field.metadata else []
    flags += [f"`--{field.name}`"] if "flag" in field.metadata else []
    text = field.metadata.get("text", "")
    return f"{text} Flag: {', '.join(flags)}." if flags else text


if __name__ == "__main__":
    sys.exit(run_main(write_pages))
