"""Writes the page of all keys of the params files from the dataclasses that declare them.

``python -m modelzoo.common.config.reference`` writes ``configs/README.md``; a test compares them.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
import typing
from pathlib import Path

import yaml

from cerebras_tf.cli.arguments import RunArguments
from cerebras_tf.cli.exit_codes import run_main
from cerebras_tf.whole_file import write_whole
from modelzoo.common.config import registry, schema

PAGE = Path(__file__).resolve().parents[3] / "configs" / "README.md"
FIRST = ("runconfig", "csconfig", "optimizer", "sparsity")  # sections that all models share
HEAD = """\
# Keys of the params files

Written by `.venv/bin/python -m modelzoo.common.config.reference` from the dataclasses that check
the files; not by hand. Precedence: the command line, then the file, then the section that a section
takes over from, then the default. A key without a default is required. What `eval_input` and
`predict_input` take over stands with each model, for the same data processor; from another one they
take over `vocab_size`, `vocab_file`, `max_sequence_length` and `batch_size`. Their `shuffle` and
`repeat` are False unless they say otherwise themselves. Paths are looked up from the current
folder, the folder of the file, and the folders above it up to the root of the repository. Where a
key is a section of its own, its keys stand in the table that is named.
"""


def write_page(argv):
    """Writes the page."""
    argparse.ArgumentParser(
        prog="modelzoo.common.config.reference", description=__doc__
    ).parse_args(argv)
    write_whole(PAGE, page())
    print(f"wrote {PAGE}")


def page():
    """Returns the text of the page."""
    classes = {
        name: registry.params_class(name, where="reference") for name in registry.model_names()
    }
    tables = Tables()
    shared = next(iter(classes.values()))
    parts = [HEAD, "\n## Sections of every model\n\n"]
    for section in FIRST:
        parts.append(
            f"- `{section}`: {', '.join(tables.named(section_classes(shared, section)))}\n"
        )
    for name, cls in classes.items():
        parts.append(f"\n## {name}\n\n{model_lines(name, cls, tables)}")
    return "".join([*parts, "\n# Tables\n", *tables.texts()])


def model_lines(name, cls, tables):
    """Returns the lines on a model's own sections: their tables, and what they take over."""
    path = f"modelzoo/{name.replace('.', '/')}"
    lines = [f"Page: [{path}](../{path}/README.md)\n\n"]
    sections: dict[str, list[str]] = {}  # names of sections by what they may be
    for field in dataclasses.fields(cls):
        found = section_classes(cls, field.name)
        if found and field.name not in FIRST:
            sections.setdefault(", ".join(tables.named(found)), []).append(field.name)
        elif not found:
            tables.top.setdefault(field.name, cls)
    for text, names in sections.items():
        lines.append(f"- {', '.join(f'`{one}`' for one in names)}: {text}\n")
    inherited = ", ".join(f"`{key}`" for key in cls.INHERITED_KEYS)
    lines.append(f"- `eval_input` takes over from `train_input`: {inherited}\n")
    needed = "" if cls.PREDICTS_EVAL_INPUT else ", and must be there to predict"
    lines.append(f"- `predict_input` takes over every key of `eval_input`{needed}\n")
    return "".join(lines)


def section_classes(cls, name):
    """Returns the dataclasses that a section may be, by the value that picks them."""
    field = next(field for field in dataclasses.fields(cls) if field.name == name)
    hint = typing.get_type_hints(cls)[name]
    if dataclasses.is_dataclass(hint):
        return {"": hint}
    return dict(getattr(field.metadata.get("build"), "classes", {}))


class Tables:
    """The tables that the page needs, each once, in the order they were named.

    Attributes:
        top: keys at the top of a file that are no sections, and a class that declares them.
    """

    def __init__(self):
        self.top = {}
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

    def texts(self):
        """Yields the tables; those that a table names follow."""
        rows = "".join(f"| `{key}` | {source_of(cls, key)} |\n" for key, cls in self.top.items())
        yield "\nAt the top of a file stand, beside the sections:\n\n| key | from |\n|---|---|\n"
        yield rows
        for cls in self._order:  # grows while links are made
            yield f"\n## {cls.__name__}\n\n{inspect.getdoc(cls)}\n\n"
            yield "| key | type | default | from |\n|---|---|---|---|\n"
            hints = typing.get_type_hints(cls)
            for field in dataclasses.fields(cls):
                yield self._row(cls, field, hints[field.name])

    def _row(self, cls, field, hint):
        default = "required"
        if field.default is not dataclasses.MISSING:
            plain = schema.as_tree(field.default)
            text = yaml.safe_dump(plain, default_flow_style=True, width=10**6).split("\n...")[0]
            default = f"`{text.strip()}`"
        words = [self._type(field, hint)]
        if "choices" in field.metadata:
            words.append(f"one of {', '.join(f'`{item}`' for item in field.metadata['choices'])}")
        for key, text in (("minimum", "at least"), ("above", "above"), ("below", "below")):
            if key in field.metadata:
                words.append(f"{text} {field.metadata[key]}")
        return (
            f"| `{field.name}` | {', '.join(words)} | {default} | {source_of(cls, field.name)} |\n"
        )

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


def source_of(cls, key):
    """Returns where a key is declared, and the flag of the command line that sets it."""
    owner = next(base for base in cls.__mro__ if key in vars(base).get("__annotations__", ()))
    flags = {field.name for field in dataclasses.fields(RunArguments)}
    flag = f"`--{key}`, " if cls.__name__ == "RunConfigParams" and key in flags else ""
    return f"{flag}`{owner.__module__.replace('.', '/')}.py`"


if __name__ == "__main__":
    sys.exit(run_main(write_page))
