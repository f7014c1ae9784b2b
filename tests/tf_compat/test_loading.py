"""Tests what is dropped of the lines that TensorFlow's C++ code writes."""

from __future__ import annotations

import os

from cerebras_tf.tf_compat.loading import without_lines


def test_without_lines_drops_lines_with_a_text_and_keeps_others(capfd):
    with without_lines([b"no driver"]):
        os.write(2, b"I0000: no driver found\nE0000: out of memory\n")
    os.write(2, b"no driver\n")
    assert capfd.readouterr().err == "E0000: out of memory\nno driver\n"
