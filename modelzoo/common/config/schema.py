"""What the models declare and build their sections with; it is cerebras_tf.config.schema's."""

from cerebras_tf.config.schema import (
    LONG_END,
    SMALLEST_FLOAT,
    Report,
    as_number,
    as_tree,
    build,
    build_section,
    build_variant,
    convert,
    field,
    regular_expressions,
    shortened,
    taking,
    type_words,
)

__all__ = [
    "LONG_END",
    "SMALLEST_FLOAT",
    "Report",
    "as_number",
    "as_tree",
    "build",
    "build_section",
    "build_variant",
    "convert",
    "field",
    "regular_expressions",
    "shortened",
    "taking",
    "type_words",
]
