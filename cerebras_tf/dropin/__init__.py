"""The original software's import names: this folder is installed as the package `cerebras`.

`cerebras.tf` has the estimator, `cerebras.pb` the configuration messages. The folder `roots` has
the packages with other top-level names. names.py lists the names that are defined elsewhere.
Nothing else in cerebras_tf imports this package.
"""

from __future__ import annotations

from cerebras.names import serve_names

serve_names()
