"""Serializes tf.train.Example and tf.train.SequenceExample from NumPy arrays.

Filling TensorFlow's protobuf classes number by number took longer than tokenizing the text, so the
wire format is written here. Field numbers are those of tensorflow/core/example/feature.proto and
example.proto. Parsing is TensorFlow's.
"""

import numpy as np

BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3  # fields of tf.train.Feature
LENGTH_DELIMITED = 2  # wire type of everything that is here
PAYLOAD_BITS = 7  # of a byte of a varint; the eighth says that another byte follows


def encode_example(features):
    """Serializes a tf.train.Example.

    Args:
        features: by name an array of integers (stored as int64), an array of floating point
            numbers (stored as float32), a bytes object or a list of bytes objects.

    Returns:
        The bytes of the message.
    """
    return _field(1, _features(features))


def encode_sequence_example(feature_lists, context=None):
    """Serializes a tf.train.SequenceExample.

    Args:
        feature_lists: by name a list of features, each as in `encode_example`.
        context: features as in `encode_example`.

    Returns:
        The bytes of the message.
    """
    entries = []
    for name, values in sorted(feature_lists.items()):
        steps = b"".join(_field(1, _feature(value)) for value in values)
        entries.append(_entry(name, steps))
    return _field(1, _features(context or {})) + _field(2, b"".join(entries))


def encode_varints(values):
    """Returns integers [n], as one run of base 128 varints; negative ones take ten bytes."""
    values = np.asarray(values).astype(np.int64, copy=False).view(np.uint64)
    size = _varint_bytes(int(values.max(initial=0)))
    if size == 1:
        return values.astype(np.uint8).tobytes()
    if size <= 4:
        values = values.astype(np.uint32)
    positions = np.arange(size, dtype=values.dtype)
    rest = values[:, None] >> (positions * values.dtype.type(PAYLOAD_BITS))  # [n, size]
    digits = (rest & values.dtype.type(0x7F)).astype(np.uint8)
    digits[:, :-1] |= (rest[:, 1:] != 0).astype(np.uint8) << 7
    kept = rest != 0
    kept[:, 0] = True
    return digits[kept].tobytes()


def _varint_bytes(number):
    return max(1, -(-number.bit_length() // PAYLOAD_BITS))


def _varint(number):
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= PAYLOAD_BITS
    digits.append(number)
    return bytes(digits)


def _field(number, payload):
    return bytes([number << 3 | LENGTH_DELIMITED]) + _varint(len(payload)) + payload


def _entry(name, value):
    return _field(1, _field(1, name.encode("utf-8")) + _field(2, value))


def _features(features):
    return b"".join(_entry(name, _feature(features[name])) for name in sorted(features))


def _feature(value):
    if isinstance(value, bytes):
        value = [value]
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return _field(BYTES_LIST, b"".join(_field(1, item) for item in value))
    array = np.asarray(value).reshape(-1)
    if array.dtype.kind == "f":
        return _field(FLOAT_LIST, _field(1, array.astype("<f4").tobytes()))
    if array.dtype.kind not in "iub":
        raise TypeError(
            "a feature must contain integers, floating point numbers or bytes. Received: "
            f"{value!r}."
        )
    return _field(INT64_LIST, _field(1, encode_varints(array)))
