"""setup.py installs every package of the tree once, under the names users import."""

from __future__ import annotations

from pathlib import Path

from packaging.requirements import Requirement

import cerebras_tf

ROOT = Path(__file__).resolve().parents[2]


def folder_of(package: str, package_dir: dict[str, str]) -> Path:
    """Where setuptools looks for a package."""
    if package in package_dir:
        return ROOT / package_dir[package]
    above, _, last = package.rpartition(".")
    return folder_of(above, package_dir) / last if above else ROOT / last


def test_every_installed_package_has_a_folder_of_its_own(setup_fields):
    folders = [folder_of(name, setup_fields["package_dir"]) for name in setup_fields["packages"]]
    without_code = [folder for folder in folders if not (folder / "__init__.py").is_file()]
    assert without_code == [ROOT / "configs", ROOT / "configs" / "wafer"]
    assert len(folders) == len(set(folders))


def test_every_module_of_the_tree_is_in_an_installed_package(setup_fields):
    folders = {folder_of(name, setup_fields["package_dir"]) for name in setup_fields["packages"]}
    modules = [path for top in ("cerebras_tf", "modelzoo") for path in (ROOT / top).rglob("*.py")]
    # The folder `roots` is no package: those in it are.
    unreached = {path.parent for path in modules} - folders - {ROOT / "cerebras_tf/dropin/roots"}
    assert unreached == set()


def test_others_can_depend_on_it(setup_fields):
    for requirement in map(Requirement, setup_fields["install_requires"]):
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators and not operators & {"==", "==="}, requirement
    assert setup_fields["version"] == cerebras_tf.__version__
    assert setup_fields["long_description"].startswith("# cerebras_tf\n")


def test_names_of_the_original_software_are_installed(setup_fields):
    names = {"cerebras.tf", "cerebras.tf.ws", "cerebras.pb.stack", "cerebras_appliance", "tfwse"}
    assert names <= set(setup_fields["packages"])
    assert not [name for name in setup_fields["packages"] if ".dropin" in name]


def test_text_of_the_tiny_configs_is_installed(setup_fields):
    from modelzoo.common.data.text_files import OWN_TEXT

    package = "modelzoo.common.data"
    (pattern,) = setup_fields["package_data"][package]
    found = folder_of(package, setup_fields["package_dir"]).glob(pattern)
    assert set(found) == set(OWN_TEXT.iterdir())
