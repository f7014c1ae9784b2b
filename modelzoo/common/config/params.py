"""Loads a YAML of configs/ into a model's frozen parameters, and writes it back.

It starts nothing and imports no TensorFlow, so that a mistake in a YAML is told at once.
Precedence: command line, then YAML, then the defaults in the dataclasses.
"""

from __future__ import annotations

import glob
import math
import os
import re
from pathlib import Path

import yaml

from cerebras_tf.errors import ConfigError
from cerebras_tf.whole_file import write_whole
from modelzoo.common.config import registry, schema
from modelzoo.common.config.sections import RunConfigParams
from modelzoo.common.config.yaml_advice import advice_on_yaml, line_of
from modelzoo.common.files.path_advice import advice_on_path

MOST_FILES_NAMED = 8
STARTS = ("checkpoint_path", "resume_from")


def load_params(path, overrides=None, model_name=None):
    """Loads and checks a YAML file.

    Args:
        path: the YAML file.
        overrides: values by dotted key (``runconfig.max_steps``) that win over the file; entries
            of None are ignored.
        model_name: the model where the YAML has no top-level key `model_name`.

    Returns:
        The model's parameters: an instance of `Params` of ``modelzoo/<model_name>/params.py``.

    Raises:
        ConfigError: with every mistake found, one a line.
    """
    tree, lines = read_yaml(path)
    base = Path(path).resolve().parent
    report = schema.Report(str(path), lines, lambda value: resolve_path(value, base))
    overrides = {key: value for key, value in (overrides or {}).items() if value is not None}
    _check_replaced(tree, overrides, report)
    for key, value in overrides.items():
        set_key(tree, key, value)
    tree.setdefault("model_name", model_name)
    cls = registry.params_class(tree["model_name"], where=str(path))
    return _build(cls, tree, report)


def _check_replaced(tree, overrides, report):
    """Reports values of the file's runconfig that are none, also where overrides replace them."""
    section = tree.get("runconfig")
    for key in overrides:
        name = key.removeprefix("runconfig.")
        if isinstance(section, dict) and name != key and name in section:
            schema.check_key(RunConfigParams, name, section[name], report, key)


def params_from_dict(cls, tree, where="params"):
    """Builds a model's parameters from a nested dictionary, such as a model_fn receives.

    Raises:
        ConfigError: with every mistake found, one a line.
    """
    return _build(cls, tree, schema.Report(where))


def _build(cls, tree, report):
    if hasattr(cls, "with_other_files"):
        tree = cls.with_other_files(tree, report.resolve)
    params = schema.build(cls, cls.with_defaults(tree), report)
    if report.messages:
        raise ConfigError(report.text())
    return params


def save_params(params, model_dir):
    """Writes ``params.yaml`` into `model_dir`, whole or not at all. Returns its text."""
    text = yaml.safe_dump(schema.as_tree(params), sort_keys=False)
    write_whole(Path(model_dir, "params.yaml"), text)
    return text


def saved_runconfig(model_dir):
    """Returns the section ``runconfig`` that the run before saved in `model_dir`, {} without one.

    Raises:
        ConfigError: if the saved file is empty or no YAML, or was changed to what no run saves.
    """
    path = Path(model_dir) / "params.yaml"
    saved = (
        (read_yaml(path, "Restore the file.")[0].get("runconfig") or {}) if path.exists() else {}
    )
    starts = [saved.get(key) for key in STARTS] if isinstance(saved, dict) else [saved]
    if not all(isinstance(start, (str, type(None))) for start in starts):
        raise ConfigError(
            f"{path}: runconfig must be a section, and {' and '.join(STARTS)} in it texts, as a "
            f"run saved them. Received: {schema.shortened(saved)}. Restore the file."
        )
    return saved


def saved_difference(params, model_dir, sections=None):
    """Compares parameters with those that an earlier run saved in `model_dir`.

    Args:
        params: a model's parameters.
        model_dir: where ``params.yaml`` may be.
        sections: top-level keys to compare; None for all.

    Returns:
        The lines of a unified diff from the saved to the given, one a key (``model.hidden_size:
        8``); empty where they are equal or none are saved.

    Raises:
        ConfigError: if the saved file is empty or no YAML.
    """
    path = Path(model_dir) / "params.yaml"
    if not path.exists():
        return []
    trees = read_yaml(path, "Restore the file.")[0], schema.as_tree(params)
    old, new = (
        dict(flat_keys({key: tree[key] for key in tree if sections is None or key in sections}))
        for tree in trees
    )
    lines = []
    for key in [*new, *(key for key in old if key not in new)]:
        told = [f"{sign}{key}: {of[key]}" for sign, of in (("-", old), ("+", new)) if key in of]
        if old.get(key) != new.get(key):
            lines += told
    return [f"--- {path}", "+++ given", *lines] if lines else []


def flat_keys(tree, path=""):
    """Yields dotted keys and their values, as YAML has them in a line, of a nested dictionary."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from flat_keys(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list) and any(isinstance(item, dict) for item in tree):
        for index, item in enumerate(tree):
            yield from flat_keys(item, f"{path}[{index}]")
    else:
        text = yaml.dump(
            tree, Dumper=_LineDumper, default_flow_style=True, width=math.inf, allow_unicode=True
        )
        yield path, text.removesuffix("\n").removesuffix("\n...")


class _LineDumper(yaml.SafeDumper):
    """Escapes the line breaks of texts, which safe_dump writes as empty lines."""

    def represent_str(self, data):
        style = '"' if "\n" in data else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_LineDumper.add_representer(str, _LineDumper.represent_str)


def read_yaml(path, advice="Begin from one of `cerebras-tf configs list`."):
    """Reads a YAML file.

    Args:
        path: the file.
        advice: what to do where it holds no keys.

    Returns:
        The nested dictionary, and the line number of each dotted key.

    Raises:
        ConfigError: if the file is missing, is no YAML, has no key, or names one twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}. {_advice_on_path(path, error)}"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: must be UTF-8 text. Received: {error}. Save it in this encoding."
        ) from error
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines: dict[str, int] = {}
        if node is not None:
            _collect_lines(node, "", str(path), lines, ())
        tree = loader.construct_document(node) if node is not None else None
    except yaml.YAMLError as error:
        line = line_of(error)
        place = f"{path}: line {line}" if line else str(path)
        if isinstance(error, _OtherNumberError):
            raise ConfigError(f"{place}: {error.problem}") from error
        raise ConfigError(f"{place}: this is not YAML: {advice_on_yaml(error)}") from error
    except RecursionError as error:
        at = loader.line + 1 if loader else 1
        raise ConfigError(
            f"{path}: line {at}: sections must not nest so deep. Received: too many to follow. "
            "Take some away."
        ) from error
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(tree, dict) or not tree:
        received = schema.shortened(tree) if tree else "nothing"
        raise ConfigError(f"{path}: must hold sections of keys. Received: {received}. {advice}")
    return tree, lines


def _advice_on_path(path, error):
    if isinstance(error, PermissionError):
        return "Correct its permissions."
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    there = sorted(found.name for found in folder.glob("*.yaml"))
    advice = "Check the path after -p; `cerebras-tf configs list` names those that come along."
    if there:
        advice = f"Files there: {', '.join(there[:MOST_FILES_NAMED])}."
    return advice_on_path(path, advice)


class _OtherNumberError(yaml.MarkedYAMLError):
    """YAML reads another number than stands there."""


class _Loader(yaml.SafeLoader):
    """Tells the line of what is none of its kind, such as the 45th of a month.

    It refuses numbers that YAML 1.1 reads in base 8 or 60. Those in base 2 or 16 begin with what
    says so, and underscores (1_000) mean nothing to YAML, Python and whoever writes them.
    """

    def construct_object(self, node, deep=False):
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            kind = node.tag.rpartition(":")[2]
            problem = f"{node.value!r:.60} is no {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_number(self, node):
        """Constructs a number that is the one that stands there."""
        kind, text = node.tag.rpartition(":")[2], self.construct_scalar(node)
        value = getattr(self, f"construct_yaml_{kind}")(node)
        base = 60 if ":" in text else 8 if re.match(r"[-+]?0[0-9_]+$", text) else None
        if base is not None:
            meant = value if base == 60 else int(text)
            raise _OtherNumberError(
                problem=f"a number must not be in base {base}, as YAML reads one "
                f"{'with colons' if base == 60 else 'that begins with 0'}. Received: {text}, which "
                f"is {value}. Write {meant} or, for a text, '{text}'.",
                problem_mark=node.start_mark,
            )
        return value


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)


def _collect_lines(node, path, where, lines, above):
    if not isinstance(node, yaml.MappingNode):
        return
    above = (*above, node)
    for key_node, value_node in node.value:
        key = f"{path}.{key_node.value}" if path else str(key_node.value)
        line = key_node.start_mark.line + 1
        if key in lines:
            raise ConfigError(
                f"{where}: key {key} stands twice. Received: lines {lines[key]} and {line}. "
                "Remove one."
            )
        lines[key] = line
        if value_node in above:
            raise ConfigError(
                f"{where}: line {line}: a section must not hold itself. Received: its alias under "
                f"{key}. Remove that."
            )
        _collect_lines(value_node, key, where, lines, above)


def set_key(tree, key, value):
    """Sets the dotted `key` of a nested dictionary, making sections on the way.

    What stands in place of a section stays, for `schema.build` to refuse.
    """
    *sections, last = key.split(".")
    for section in sections:
        if tree.get(section) is None:
            tree[section] = {}
        tree = tree[section]
        if not isinstance(tree, dict):
            return
    tree[last] = value


def resolve_path(value, base):
    """Finds a data path as written in a YAML.

    A relative path is looked up from the current folder, the YAML's folder and the folders above
    it, in a checkout up to its root (the first with a setup.py). A path found nowhere stays as it
    is, for the reader of the data to complain about.
    """
    value = os.path.expanduser(value)
    if os.path.isabs(value):
        return value
    for folder in [Path.cwd(), *_folders_up_to_root(Path(base))]:
        candidate = str(folder / value)
        if os.path.exists(candidate) or glob.glob(candidate):
            return candidate
    return value


def _folders_up_to_root(base):
    folders = [base]
    for folder in base.parents:
        if (folders[-1] / "setup.py").exists() or folder == Path(folder.anchor):
            break
        folders.append(folder)
    return folders
