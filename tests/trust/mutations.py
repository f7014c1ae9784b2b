"""Ways to damage a file or a value, drawn with a seed."""

from __future__ import annotations

import copy
import json
import os
import socket

NUMBERS = (-1, 0, 1, 2, 3, 7, 64, 128, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 62), 1 << 70)
FLOATS = (1e999, -1e999, float("nan"), 0.5, 1e-320, 1e308)
TEXTS = ("", " ", "x", "\0", "a\0b", "\ud800", "/", "../..", "http://x/y", "/dev/null", "\x1b[2J")
TEXTS += ("9" * 5000, "-", "~", "%s{}", "a" * 300, "\u0661", "float32[4]", "NaN", "1e999", "<b>")
OTHERS = (None, True, False, [], {}, [0], [[]], {"a": {}}, {"": 0}, [None], [1, "a"])
ODD = (*NUMBERS, *FLOATS, *TEXTS, *OTHERS)
BYTE_KINDS = ("bit", "bytes", "cut", "longer", "zeros", "twice", "text")
CONTENTS = (b"", b"\xef\xbb\xbf", b"null", b"[1]", b"{}", b'"x"', b"\xff\xfe{\0}\0", b"PK\3\4")
CONTENTS += (b'{"a": 1e999}', b"%PDF-1.7", b"a: &a {b: *a}", b"\0" * 100)


def deep(levels=20_000):
    """JSON that nests deeper than any parser's stack."""
    return "[" * levels + "]" * levels


def places_of(value, path=()):
    """All places in a JSON value: keys and positions that lead to it."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*path, key)
        if isinstance(item, (dict, list)):
            yield from places_of(item, (*path, key))


def changed_value(structure, chance, places=None):
    """A copy of a JSON value with one change, and a description of the change."""
    found = copy.deepcopy(structure)
    places = places or list(places_of(structure))
    *above, key = path = chance.choice(places)
    parent = found
    for each in above:
        parent = parent[each]
    old, kind = (
        parent[key],
        chance.choice(["number", "digit", "odd", "odd", "removed", "swapped", "twice"]),
    )
    if kind == "digit" and isinstance(old, str):  # a size within a type or a graph
        at = chance.choice([i for i, letter in enumerate(old) if letter.isdigit()] or [0])
        parent[key] = f"{old[:at]}{chance.choice(NUMBERS)}{old[at + 1 :]}"
    elif kind in ("number", "digit"):
        parent[key] = chance.choice([*NUMBERS, old + 1 if type(old) is int else 0])
    elif kind == "odd":
        parent[key] = chance.choice(ODD)
    elif kind == "removed":
        del parent[key]
    elif kind == "swapped":
        other = chance.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        parent[key], parent[other] = parent[other], parent[key]
    elif isinstance(parent, list):
        parent.insert(key, old)
    else:
        parent[f"{key}_"] = old
    return found, (kind, path, repr(old)[:60])


def changed_bytes(content, chance):
    """Bytes with one change."""
    data, kind = (
        bytearray(content),
        chance.choice(["bit", "bytes", "cut", "longer", "zeros", "twice", "text"]),
    )
    at = chance.randrange(max(len(data), 1))
    if kind == "bit" and data:
        data[at] ^= 1 << chance.randrange(8)
    elif kind == "bytes":
        data[at : at + 8] = bytes(chance.choice([0, 255, 128, 34, 123, 91]) for _ in range(8))
    elif kind == "cut":
        del data[at:]
    elif kind == "longer":
        data += chance.choice([b"\0", b"\n", b"{}", bytes(64)])
    elif kind == "zeros":
        data[at:] = bytes(len(data) - at)
    elif kind == "twice":
        data += bytes(data)
    else:
        choices = (
            b"",
            b"\xef\xbb\xbf",
            b"null",
            b"[1]",
            b"{}",
            b'"x"',
            b"\xff\xfe{\0}\0",
            b"PK\3\4",
        )
        data = bytearray(chance.choice([*choices, deep().encode(), b'{"a": 1e999}', b"%PDF-1.7"]))
    return bytes(data), kind


def replace_file(path, chance):
    """Puts something else in the place of a file."""
    kind = chance.choice(["pipe", "folder", "loop", "device", "socket", "nothing"])
    os.unlink(path)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        os.mkdir(path)
    elif kind == "loop":
        os.symlink(path.name, path)
    elif kind == "device":
        os.symlink("/dev/zero", path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            folder = os.open(path.parent, os.O_RDONLY)  # names of sockets are short
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")
            os.close(folder)
    return kind


def damage(path, chance):
    """Changes one file; returns what was done."""
    draw = chance.random()
    if draw < 0.15:
        return replace_file(path, chance)
    content = path.read_bytes()
    if draw < 0.65 and path.suffix == ".json":
        value, what = changed_value(json.loads(content), chance)
        path.write_bytes(json.dumps(value).encode())
        return what
    content, what = changed_bytes(content, chance)
    path.write_bytes(content)
    return what
