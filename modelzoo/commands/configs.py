"""`cerebras-tf configs list` and `copy`: the params files that are included.

In a checkout they are in ``configs/`` at its top; an installed package holds them itself.
"""

import shutil
import textwrap
from pathlib import Path

import modelzoo
from cerebras_tf.errors import ConfigError
from cerebras_tf.suggestions import did_you_mean
from cerebras_tf.whole_file import write_whole
from modelzoo.common.config import registry
from modelzoo.common.config.params import read_yaml

PREFIX, SUFFIX = "params_", ".yaml"
MAX_WIDTH = 100


def config_folder():
    """Returns the folder of the params files."""
    package = Path(modelzoo.__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def config_names():
    """Returns the sorted names of all: ``gpt3_tiny`` for ``params_gpt3_tiny.yaml``."""
    files = config_folder().glob(f"{PREFIX}*{SUFFIX}")
    return sorted(path.name[len(PREFIX) : -len(SUFFIX)] for path in files)


def config_path(name):
    """Returns the file of a config by its name or its file's name."""
    short = Path(name).name.removeprefix(PREFIX).removesuffix(SUFFIX)
    names = config_names()
    if short not in names:
        advice = did_you_mean(short, names) or "`cerebras-tf configs list` shows all."
        raise ConfigError(f"configs: there must be one of that name. Received: {name}. {advice}")
    return config_folder() / f"{PREFIX}{short}{SUFFIX}"


def add_arguments(parser, what):
    """Adds the arguments of `what`: ``list`` or ``copy``."""
    parser.set_defaults(what=what)
    if what == "list":
        text = "list those whose name, model or description contains all of these words"
        parser.add_argument("words", nargs="*", metavar="WORD", help=text)
    else:
        parser.add_argument("names", nargs="+", metavar="NAME", help="such as gpt3_tiny")
        parser.add_argument("-o", "--output_dir", default=".", help="folder to copy to")
        parser.add_argument("--overwrite", action="store_true", help="replace existing files")


def run(args):
    """Lists or copies."""
    if args.what == "list":
        list_configs(args.words)
    else:
        copy_configs(args.names, Path(args.output_dir), args.overwrite)


def list_configs(words):
    """Prints the name and the first comment of every config that contains all words."""
    rows = []
    for name in config_names():
        path = config_path(name)
        text = registry.summary(path)
        searched = f"{name} {read_yaml(path)[0]['model_name']} {text}".lower()
        if all(word.lower() in searched for word in words):
            rows.append((name, text))
    if not rows:
        raise ConfigError(
            f"configs: there must be one that contains all words. Received: {' '.join(words)}. "
            "`cerebras-tf configs list` shows all."
        )
    indent = max(len(name) for name, _ in rows) + 2
    width = max(min(shutil.get_terminal_size((MAX_WIDTH, 0)).columns, MAX_WIDTH), indent + 30)
    for name, text in rows:
        print(textwrap.fill(f"{name:<{indent}}{text}", width, subsequent_indent=" " * indent))


def with_pretraining(path):
    """Returns the file of a config, and that of the pre-training whose sizes it takes, if any."""
    named = read_yaml(path)[0]["model"].get("pretrain_params_path")
    return [path, path.parent / named] if named else [path]


def copy_configs(names, folder, overwrite):
    """Copies configs, and those that they name, into a folder; prints their paths."""
    found = [path for name in names for path in with_pretraining(config_path(name))]
    sources = list(dict.fromkeys(found))
    there = [str(folder / path.name) for path in sources if (folder / path.name).exists()]
    if there and not overwrite:
        raise ConfigError(
            f"{', '.join(there)}: must not exist. Use --overwrite to replace it, or use another "
            "folder with -o."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path in sources:
        print(write_whole(folder / path.name, path.read_text(encoding="utf-8")))
