"""Serializes tf.train.Example and tf.train.SequenceExample from NumPy arrays, and parses the first.

Filling TensorFlow's protobuf classes number by number took longer than tokenizing the text, so the
wire format is written here. Field numbers are those of tensorflow/core/example/feature.proto and
example.proto.
"""

import numpy as np

BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3  # fields of tf.train.Feature
VARINT, LENGTH_DELIMITED, FIXED_32 = 0, 2, 5  # wire types; what is written here has the second
FIXED = {1: 8, FIXED_32: 4}  # bytes of wire types of one size
MAX_VARINT_BYTES = 10
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


def decode_example(record):
    """Parses a tf.train.Example.

    Returns:
        By name an array, int64 [n] or float32 [n], or a list of bytes objects.

    Raises:
        ValueError: the record is not such a message.
    """
    found = {}
    for features in _payloads(record, 1):
        for entry in _payloads(features, 1):
            (name,), values = _payloads(entry, 1), _payloads(entry, 2)
            found[bytes(name).decode("utf-8")] = _decode_feature(values[0] if values else b"")
    return found


def _decode_feature(message):
    for kind in (INT64_LIST, FLOAT_LIST, BYTES_LIST):
        for values in _payloads(message, kind):
            if kind == BYTES_LIST:
                return [bytes(item) for item in _payloads(values, 1)]
            data = b"".join(_payloads(values, 1, packed=kind))
            return decode_varints(data) if kind == INT64_LIST else np.frombuffer(data, "<f4")
    return np.empty(0, np.int64)


def decode_varints(data):
    """Returns the integers of a run of base 128 varints, int64 [n]; see `encode_varints`."""
    digits = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(digits < 0x80) + 1
    if len(digits) and (not len(ends) or ends[-1] != len(digits)):
        raise ValueError("a number that does not end")
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)]
    sizes, values = ends - starts, np.zeros(len(ends), np.uint64)
    longest = max(sizes.tolist(), default=0)
    if longest > MAX_VARINT_BYTES:
        raise ValueError("a number of more than ten bytes")
    for place in range(longest):
        there = sizes > place
        found = (digits[starts[there] + place] & 0x7F).astype(np.uint64)
        values[there] |= found << np.uint64(PAYLOAD_BITS * place)
    return values.view(np.int64)


def _payloads(message, number, packed=0):
    """Returns the contents of a message's fields of a number; others are skipped.

    With `packed`, the list's kind, numbers that stand alone count too.
    """
    found, position, view = [], 0, memoryview(message)
    while position < len(view):
        key, position = _read_varint(view, position)
        kind, start = key & 7, position
        if kind == LENGTH_DELIMITED:
            size, start = _read_varint(view, position)
            position = start + size
        elif kind == VARINT:
            _, position = _read_varint(view, position)
        elif kind in FIXED:
            position = start + FIXED[kind]
        else:
            raise ValueError(f"wire type {kind}")
        if position > len(view):
            raise ValueError("a field that does not end")
        alone = (VARINT if packed == INT64_LIST else FIXED_32) if packed else LENGTH_DELIMITED
        if key >> 3 == number and kind in (LENGTH_DELIMITED, alone):
            found.append(view[start:position])
    return found


def _read_varint(view, position):
    number = shift = 0
    while shift < PAYLOAD_BITS * MAX_VARINT_BYTES and position < len(view):
        digit = view[position]
        position += 1
        number |= (digit & 0x7F) << shift
        if digit < 0x80:
            return number, position
        shift += PAYLOAD_BITS
    raise ValueError("a number that does not end")
