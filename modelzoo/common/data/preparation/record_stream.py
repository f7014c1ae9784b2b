"""Writes TFRecord files without TensorFlow."""

import struct

POLYNOMIAL = 0x82F63B78  # of CRC-32C, reflected
MASK_DELTA = 0xA282EAD8  # TFRecord stores checksums rotated, plus this number


def _table():
    rows = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (POLYNOMIAL if number & 1 else 0)
        rows.append(number)
    return rows


TABLE = _table()


def masked_checksum(data):
    """Returns the checksum of bytes as a TFRecord file stores it."""
    found = 0xFFFFFFFF
    for byte in data:
        found = TABLE[(found ^ byte) & 0xFF] ^ found >> 8
    found ^= 0xFFFFFFFF
    return ((found >> 15 | found << 17) + MASK_DELTA) & 0xFFFFFFFF


class RecordStream:
    """A file of records; see tensorflow/core/lib/io/record_writer.h for its format."""

    def __init__(self, path):
        self._file = open(path, "wb")  # noqa: SIM115  # closed by close()

    def write(self, record):
        """Adds a record, bytes."""
        length = struct.pack("<Q", len(record))
        self._file.write(length + struct.pack("<I", masked_checksum(length)))
        self._file.write(record + struct.pack("<I", masked_checksum(record)))

    def close(self):
        """Closes the file."""
        self._file.close()
