"""Loads a YAML of configs/ into a model's frozen parameters, and writes it back.

It imports no TensorFlow, so that a mistake in a YAML is reported at once. Precedence: flags and
`--set` of the command line, then the YAML, then the defaults of the dataclasses.
"""

import glob
import math
import os
import re
from pathlib import Path

import yaml

from cerebras_tf import user_files
from cerebras_tf.config import schema
from cerebras_tf.errors import ConfigError
from cerebras_tf.user_files import check_yaml_nodes, reason
from cerebras_tf.whole_file import write_whole
from modelzoo.common.config import original, registry
from modelzoo.common.files.path_advice import advice_on_path

MAX_YAML_BYTES = 1 << 24


def load_params(path, overrides=None, model_name=None, settings=(), unread=None):
    """Loads and checks a params file.

    Example:
        params = load_params("params.yaml", settings=[("model.hidden_size", "64")])

    Args:
        overrides: values by dotted key (``runconfig.max_steps``) that replace those of the file;
            entries of None are ignored.
        model_name: the model where the YAML has no top-level key `model_name`; None finds it by its
            keys or folder.
        settings: dotted key and YAML text of each `--set`; they replace values of the file, too.
        unread: a list, to which keys without effect are added; None logs them in one line.

    Returns:
        The model's parameters: an instance of `Params` of ``modelzoo/<model_name>/params.py``.

    Raises:
        ConfigError: with every mistake found, one a line.
    """
    tree, lines = read_yaml(path)
    base = Path(path).resolve().parent
    overrides = {key: value for key, value in (overrides or {}).items() if value is not None}
    origins = {}
    for key, text in settings:
        origins[key] = f"--set {key}"
        set_key(tree, key, _parse_setting(key, text), origins[key])
        if key in overrides and overrides[key] != _parse_setting(key, text):
            raise ConfigError(
                f"--set {key}: must not contradict another option. Received: {text} and "
                f"{overrides[key]}. Remove one of them."
            )
    for key, value in overrides.items():
        set_key(tree, key, value, path)
    report = schema.Report(str(path), lines, lambda value: resolve_path(value, base), origins)
    if tree.get("model_name") is None:
        tree["model_name"] = model_name or original.find_model(tree, str(path))
    cls = registry.params_class(tree["model_name"], where=origins.get("model_name", str(path)))
    tree, found = original.without_unread_keys(tree, report)
    params = _build(cls, tree, report)
    if unread is None:
        original.log_unread(path, found)
    else:
        unread += found
    return params


def _parse_setting(key, text):
    """Returns the value of a `--set`, as the YAML of a params file has it."""
    try:
        return _parse(text)[0]
    except (yaml.YAMLError, RecursionError, *_WRONG_TAGS) as error:
        raise ConfigError(
            f"--set {key}: must be a YAML value. Received: {text!r}, {_problem(error)}. Put "
            "strings in quotes."
        ) from error


def params_from_dict(cls, tree, where="params"):
    """Builds a model's parameters from a nested dictionary, such as a model_fn receives."""
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
    """Returns the ``runconfig`` that the run before saved in `model_dir`, {} without one."""
    path = Path(model_dir) / "params.yaml"
    saved = read_yaml(path, "Restore the file.")[0].get("runconfig") if path.exists() else {}
    if not isinstance(saved or {}, dict):
        raise ConfigError(
            f"{path}: runconfig must be a section. Received: {schema.shortened(saved)}. Restore "
            "the file."
        )
    return saved or {}


def saved_difference(params, model_dir, sections=None):
    """Compares parameters with those that an earlier run saved in `model_dir`.

    Args:
        model_dir: where ``params.yaml`` may be.
        sections: top-level keys to compare; None for all.

    Returns:
        The lines of a unified diff from the saved to the given, one a key (``model.hidden_size:
        8``); empty where they are equal or none are saved.
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
        changed = [f"{sign}{key}: {of[key]}" for sign, of in (("-", old), ("+", new)) if key in of]
        if old.get(key) != new.get(key):
            lines += changed
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


def read_yaml(path, advice="Start from one of `cerebras-tf configs list`."):
    """Reads a YAML file; returns the nested dictionary, and the line number of each dotted key."""
    try:
        text = user_files.read_text(path, limit=MAX_YAML_BYTES)
    except OSError as error:
        advice = advice_on_path(path, "Check the path; `cerebras-tf configs list` shows all.")
        raise ConfigError(f"{path}: must be readable. Received: {reason(error)}. {advice}") from (
            error
        )
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: must be UTF-8 text. Received: {error}. Save it in this encoding."
        ) from error
    lines: dict[str, int] = {}
    try:
        tree, node = _parse(text)
        _collect_lines(node, "", str(path), lines)
    except ConfigError:
        raise
    except (yaml.YAMLError, RecursionError, *_WRONG_TAGS) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}: line {mark.line + 1}" if mark else str(path)
        raise ConfigError(
            f"{place}: must be YAML. Received: {_problem(error)}. Check indentation, colons, "
            "brackets and quotes of this line and those above it."
        ) from error
    if not isinstance(tree, dict) or not tree:
        received = schema.shortened(tree) if tree else "nothing"
        raise ConfigError(f"{path}: must contain sections of keys. Received: {received}. {advice}")
    return tree, lines


def _parse(text):
    """Returns the value of a YAML text and its node; aliases may not multiply without limit."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        check_yaml_nodes(node)
        return loader.construct_document(node) if node is not None else None, node
    finally:
        loader.dispose()


# Python's errors that PyYAML raises for a value that does not match its tag (`!!int x`).
_WRONG_TAGS = (ValueError, LookupError, TypeError, AttributeError, OverflowError)


def _problem(error):
    if isinstance(error, RecursionError):
        return "sections that nest too deep"
    return getattr(error, "problem", None) or " ".join(str(error).split())


class _Loader(yaml.SafeLoader):
    """Reads plain numbers as decimal and dates as texts.

    YAML 1.1 would read 010 as 8, 1:30 as 90 and 2022-11-31 as an error.
    """

    yaml_implicit_resolvers = {
        letter: [
            (tag, of) for tag, of in pairs if not tag.endswith((":int", ":float", ":timestamp"))
        ]
        for letter, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_decimal(self, node):
        """Constructs an integer; prefixes 0x and 0b set the base."""
        text = self.construct_scalar(node).replace("_", "")
        return int(text, 0) if re.search("[xb]", text) else int(text)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"[-+]?([0-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?$"
        r"|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_decimal)


def _collect_lines(node, path, where, lines):
    if not isinstance(node, yaml.MappingNode):
        return
    values: dict[str, yaml.Node] = {}
    for key_node, value_node in node.value:
        key = f"{path}.{key_node.value}" if path else str(key_node.value)
        line = key_node.start_mark.line + 1
        if key in lines and not _same_scalar(values.get(key), value_node):
            raise ConfigError(
                f"{where}: key {key} must occur only once. Received: lines {lines[key]} and "
                f"{line}. Remove one."
            )
        lines[key] = line
        values[key] = value_node
        _collect_lines(value_node, key, where, lines)


def _same_scalar(node, other):
    scalars = isinstance(node, yaml.ScalarNode) and isinstance(other, yaml.ScalarNode)
    return scalars and (node.tag, node.value) == (other.tag, other.value)


def set_key(tree, key, value, where="params"):
    """Sets the dotted `key` of a nested dictionary, making sections that are missing."""
    *sections, last = key.split(".")
    for at, section in enumerate(sections):
        if tree.get(section) is None:
            tree[section] = {}
        tree = tree[section]
        if not isinstance(tree, dict):
            raise ConfigError(
                f"{where}: {'.'.join(sections[: at + 1])} must be a section to set {key}. "
                f"Received: {schema.shortened(tree)}. Set it as a whole."
            )
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
