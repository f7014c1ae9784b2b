"""Escapes text for HTML. Functions that build pages take text, or HTML that is marked as Markup."""

from __future__ import annotations

import html

from cerebras_tf.user_files import printable


class Markup(str):
    """HTML that is not escaped again."""

    __slots__ = ()


def escaped(content: str) -> Markup:
    """The HTML of a text; Markup as it is."""
    return content if isinstance(content, Markup) else Markup(html.escape(printable(content)))
