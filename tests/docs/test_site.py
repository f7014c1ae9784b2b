"""The site builds without a warning, and the program on one of its pages runs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_environment_variables_is_current():
    place = importlib.util.spec_from_file_location(
        "environment_variables", ROOT / "docs" / "environment_variables.py"
    )
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    if importlib.util.find_spec("sphinx") is None:
        pytest.skip("needs Sphinx: CEREBRAS_TF_DOCS=1 scripts/run_tests installs it")
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    ran = subprocess.run(
        [*command, "docs", str(built)], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return built


@pytest.mark.tf
def test_the_site_has_every_command(site):
    from modelzoo.commands.main import ROOT as group

    text = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    for name in group.commands:
        assert f'id="{name.replace("_", "-")}' in text, name


@pytest.mark.tf
def test_the_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="https?:', text), page.name


def run_program(code, folder):
    """Runs the text of a program; returns what it prints on stdout and stderr."""
    pytest.importorskip("sklearn")
    (folder / "train.py").write_text(code, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    assert float(re.search(r"'accuracy': (?:np.float32\()?([\d.]+)", ran.stdout)[1]) > 0.8
    return ran.stdout, ran.stderr


@pytest.mark.tf
def test_the_program_of_a_model_fn_of_ones_own_runs(tmp_path):
    page = (ROOT / "docs" / "tutorials" / "model-fn.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    shown, logged = run_program(code, tmp_path)
    assert re.search(r"global_step = 400, loss = ", logged) and "first predictions:" in shown


@pytest.mark.tf
def test_the_cells_of_the_notebook_run(tmp_path):
    notebook = json.loads((ROOT / "docs" / "notebooks" / "digits.ipynb").read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    kinds = [output["output_type"] for cell in cells for output in cell["outputs"]]
    assert kinds and set(kinds) == {"stream"}  # executed, without errors
    text = "".join(line for cell in cells for out in cell["outputs"] for line in out["text"])
    assert "Traceback" not in text and "Warning" not in text and str(ROOT) not in text
    shown, _ = run_program("\n".join("".join(cell["source"]) for cell in cells), tmp_path)
    assert re.search(r"^300 0\.0\d+$", shown, flags=re.MULTILINE)  # of metrics.csv
    assert re.search(r"^9\d\.\d% of 297 digits are right$", shown, flags=re.MULTILINE)


def test_the_first_page_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150 and len(text.encode()) <= 8_000


def test_pictures_are_small_and_used():
    pages = "".join(
        path.read_text(encoding="utf-8")
        for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    )
    for picture in (ROOT / "docs" / "pictures").iterdir():
        if picture.suffix in (".png", ".svg"):
            assert picture.stat().st_size < 150_000, picture.name
            assert f"pictures/{picture.name}" in pages, picture.name
