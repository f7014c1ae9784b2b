"""That errors read alike: where: what must hold. Received: values. What to do."""

from __future__ import annotations

import re

# What was received follows a colon.
OTHERWISE = re.compile(r"\bReceived\b(?!: )")


def test_errors_give_what_was_received_after_a_colon(sources):
    faults = [
        f"{source.path}:{number}: {line.strip()}"
        for source in sources
        if not source.path.startswith("tests/")
        for number, line in enumerate(source.text.splitlines(), 1)
        if OTHERWISE.search(line) and not line.rstrip().endswith('Received:"')
    ]
    assert not faults, "\n".join(faults)
