"""The original software's import names: this folder is installed as the package `cerebras`.

`cerebras.tf` holds the estimator, `cerebras.pb` the configuration messages. The folder `roots`
holds the packages that had other top-level names. Names that are defined elsewhere stand in the
table of names.py. Nothing here computes anything a name does not ask for, and nothing else in
cerebras_tf imports it.
"""

from __future__ import annotations

from cerebras.names import serve_names

serve_names()
