"""Files from others are parsed by cerebras_tf/user_files.py and the places that are named here.

Its readers open regular files only, within a size and a depth, and turn all errors of parsers into
ValueError. A parser that is called elsewhere would do none of this.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READER = "cerebras_tf/user_files.py"
PARSERS = re.compile(
    r"json\.loads?|pickle\.\w*load\w*|\w*Unpickler|marshal\.loads?|shelve\.open|torch\.load"
    r"|(np|numpy)\.(load|loadtxt|genfromtxt|fromfile|memmap)|(zipfile\.)?ZipFile|tarfile\.open"
    r"|yaml\.\w*(load|compose|parse|scan)\w*|(yaml\.|_)(Safe|Base|Full)?Loader"
    r"|tomllib\.loads?|h5py\.File|(gzip|bz2|lzma)\.open|(parquet\.)?ParquetFile|safe_open"
    r"|load_file|[\w?]+\.from_pretrained"
)
# By file and call: why it may be there.
ALLOWED = {
    ("modelzoo/common/config/params.py", "_Loader"): "the reader of params files",
    ("modelzoo/common/files/text_sources.py", "tarfile.open"): "the reader of text; a stream",
    ("modelzoo/common/files/text_sources.py", "parquet.ParquetFile"): "the reader of text",
    ("modelzoo/common/data/hdf5_files.py", "h5py.File"): "of a regular file, errors are caught",
    ("modelzoo/common/data/token_cache.py", "np.memmap"): "of an open file whose CRC is compared",
    ("modelzoo/common/data/preparation/records.py", "json.loads"): "a text made in the same line",
    ("modelzoo/common/data/preparation/vocabulary.py", "json.loads"): "the text of a tokenizer",
    ("modelzoo/common/tokenizers/tokenizers.py", "json.loads"): "the text of a tokenizer",
    ("cerebras_tf/torch_step/pretrained.py", "json.loads"): "the text of a configuration",
    ("cerebras_tf/frontend/program_source.py", "pickle.loads"): "bytes made in the same function",
    ("cerebras_tf/kernels/compiled_jit.py", "pickle.loads"): "owner and digest are checked",
    ("cerebras_tf/swarmx/mpi.py", "pickle.loads"): "bytes with a signature",
    ("cerebras_tf/ir/program_file.py", "zipfile.ZipFile"): "it writes",
    ("cerebras_tf/wafer/system.py", "yaml.safe_load"): "a file of the package",
    ("cerebras_tf/runtime/saved_run.py", "np.fromfile"): "an open file of bytes",
    ("cerebras_tf/memoryx/store.py", "np.fromfile"): "an open file of bytes",
    ("cerebras_tf/memoryx/store.py", "np.memmap"): "bytes of a file whose index has been read",
    # Of transformers: config.json has been read by user_files, and errors are caught.
    ("cerebras_tf/torch_step/pretrained.py", "AutoConfig.from_pretrained"): "see above",
    ("modelzoo/hugging_face/model.py", "AutoConfig.from_pretrained"): "see above",
    ("modelzoo/hugging_face/model.py", "?.from_pretrained"): "see above",
    ("modelzoo/hugging_face/chat.py", "AutoTokenizer.from_pretrained"): "errors are caught",
    ("modelzoo/common/convert/verify.py", "cls.from_pretrained"): "weights that have been read",
}


def name_of(call: ast.expr) -> str:
    """The last two words of what is called."""
    if isinstance(call, ast.Name):
        return call.id
    if not isinstance(call, ast.Attribute):
        return "?"
    return f"{name_of(call.value).rpartition('.')[2]}.{call.attr}"


def test_only_the_named_places_parse_files():
    found = {}
    for path in (*ROOT.glob("cerebras_tf/**/*.py"), *ROOT.glob("modelzoo/**/*.py")):
        file = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and PARSERS.fullmatch(name := name_of(node.func)):
                found.setdefault((file, name), node.lineno)
    others = {key: line for key, line in found.items() if key[0] != READER and key not in ALLOWED}
    assert not others, f"use {READER}: {others}"
    gone = ALLOWED.keys() - found.keys()
    assert not gone


def test_transformers_runs_no_code_of_a_folder():
    for file, call in ALLOWED:
        if call.startswith(("Auto", "cls.")):
            for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and name_of(node.func) == call:
                    given = {each.arg: ast.unparse(each.value) for each in node.keywords}
                    assert given.get("trust_remote_code") == "False", f"{file}:{node.lineno}"
