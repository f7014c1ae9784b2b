"""Options of a run are declared once: nobody else knows their defaults."""

from __future__ import annotations

import ast
import dataclasses

from cerebras_tf.config.run_options import EstimatorOptions, RunConfigParams

NAMES = {
    each.name for cls in (EstimatorOptions, RunConfigParams) for each in dataclasses.fields(cls)
}


def test_nobody_guesses_the_default_of_an_option(sources):
    faults = [
        f"{source.path}:{node.lineno}: {ast.unparse(node)}"
        for source in sources
        if source.path.startswith(("cerebras_tf/", "modelzoo/"))
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr"
        if len(node.args) == 3 and ast.unparse(node.args[0]).endswith(("_config", "config"))
        if isinstance(node.args[1], ast.Constant) and node.args[1].value in NAMES
    ]
    assert not faults, "\n".join(faults)
