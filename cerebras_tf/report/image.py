"""The floor plan as a picture of dots, for viewers that show no SVG."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

from cerebras_tf.report.pictures import shade
from cerebras_tf.wafer.prediction import Prediction

_EDGE = 255  # white lines between places
_EMPTY = 238


def floorplan_pixels(found: Prediction) -> npt.NDArray[np.uint8]:
    """uint8 [rows, columns, 3]: a dot a core, the colour as in the report."""
    machine = found.machine
    pixels = np.full((machine.rows, machine.columns, 3), _EMPTY, np.uint8)
    most = max((place.utilisation for place in found.floorplan), default=1.0) or 1.0
    for place in found.floorplan:
        colour = shade(place.utilisation / most)
        inside = pixels[place.y : place.y + place.height, place.x : place.x + place.width]
        inside[:] = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        inside[-1:] = inside[:, -1:] = _EDGE
    return pixels


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """An image file of uint8 [height, width, 3] (PNG specification, ISO/IEC 15948)."""
    height, width, _ = pixels.shape

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    lines = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            chunk(b"IDAT", zlib.compress(lines, 9)),
            chunk(b"IEND", b""),
        ]
    )
