"""Environment variables of a run."""

from __future__ import annotations

import os

appliance_environ = os.environ
