"""Runs the marked commands of the pages and replaces the outputs that the pages show.

    .venv/bin/python docs/update_outputs.py --folder FOLDER [PAGE ...]

A comment `<!-- output: keep=REGEX -->` marks a block of commands; the next ```text block is its
output, of which lines that match REGEX are shown, and `...` for lines between them. A comment
`<!-- file: NAME = OTHER + -->` writes the next block after a copy of OTHER. Everything is made in
FOLDER, so that pages continue with what earlier ones made. Times of lines, rates and long lines are
cut.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGES = (
    "getting-started.md",
    "tutorials/generate.md",
    "tutorials/gpt.md",
    "tutorials/gptj.md",
    "tutorials/bert.md",
    "tutorials/transformer.md",
    "tutorials/hugging-face.md",
    "tutorials/predict-a-cs2.md",
    "guides/profiling.md",
)
MARKED = re.compile(
    r"<!-- output: keep=(?P<keep>.*?) -->\n```bash\n(?P<commands>.*?)^```\n"
    r"(?P<between>.*?)^```text\n(?P<output>.*?)^```\n",
    flags=re.MULTILINE | re.DOTALL,
)
FILE = re.compile(
    r"<!-- file: (?P<name>\S+) = (?P<other>\S+) \+ -->\n```\w+\n(?P<text>.*?)^```\n",
    flags=re.MULTILINE | re.DOTALL,
)
TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
RATE = re.compile(r", rate = .*$")
WIDEST = 240


def excerpt(output: str, keep: str) -> str:
    """Returns the lines of an output that match a regular expression, as a page shows them."""
    shown: list[str] = []
    for line in output.replace("\r", "\n").splitlines():
        line = RATE.sub("", TIME.sub("", line)).rstrip()
        line = re.sub(r'("(?:tokens|log_probs)": \[[^]]{1,30}?,) [^]]*\]', r"\1 ...]", line)
        if re.search(keep, line):
            shown.append(line if len(line) <= WIDEST else f"{line[:WIDEST]} ...")
        elif line and shown and shown[-1] != "...":
            shown.append("...")
    while shown and shown[-1] == "...":
        shown.pop()
    return "".join(f"{line}\n" for line in shown)


def update(page: Path, folder: Path) -> None:
    """Runs the commands of a page in a folder and writes their outputs into the page."""
    text = page.read_text(encoding="utf-8")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(match: re.Match[str]) -> str:
        print(f"{page.name}: {match['commands'].splitlines()[0]} ...", flush=True)
        ran = subprocess.run(
            ["bash", "-e", "-c", match["commands"]],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if ran.returncode:
            raise SystemExit(f"{page}: {match['commands']}\n{ran.stdout}")
        before = match[0][: -len(f"{match['output']}```\n")]
        return f"{before}{excerpt(ran.stdout, match['keep'])}```\n"

    for match in FILE.finditer(text):
        other = (folder / match["other"]).read_text(encoding="utf-8")
        (folder / match["name"]).write_text(f"{other}\n{match['text']}", encoding="utf-8")
    page.write_text(MARKED.sub(run, text), encoding="utf-8")


def main() -> None:
    """Updates the pages that are given, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where commands run")
    parser.add_argument("pages", nargs="*", default=PAGES, help="pages, relative to docs")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for page in args.pages:
        update(DOCS / page, args.folder)


if __name__ == "__main__":
    main()
