"""Saves a program as one file and loads it again: a zip of JSON and .npy members.

JSON holds the structure, with graphs in their text form; every array is a member of its own. No
member is a pickle, so loading runs no code. Weights are not part of the file. The digest of all
members detects damage; `runtime.verify_program` refuses a program that is unsafe to run.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any, BinaryIO, Optional, Union

import numpy as np

from cerebras_tf.errors import GraphError
from cerebras_tf.ir.dimensions import Dim, parse_dim
from cerebras_tf.ir.graph import Graph
from cerebras_tf.ir.packing import Check, Packing, TokenSpace
from cerebras_tf.ir.program import Cost, Instruction, Layer, Program, Slot
from cerebras_tf.ir.schedule import decode_entry
from cerebras_tf.ir.step import Draw
from cerebras_tf.ir.text import collect_constants, digest, parse_graph, print_graph
from cerebras_tf.ir.types import Array, parse_type
from cerebras_tf.user_files import (
    MAX_EXPANDED_BYTES,
    open_regular,
    open_zip,
    parse_json,
    read_array,
    reason,
)
from cerebras_tf.whole_file import replacing

FORMAT = "cerebras_tf program"
# Increased whenever an older reader could not read the file.
VERSION = 5
_STRUCTURE = "program.json"
_ORIGIN = "origin.json"
_DIGEST = "digest"
Json = dict[str, Any]


def save_program(program: Program, path: Union[str, Path], origin: Optional[Json] = None) -> None:
    """Writes a program; the file appears complete or not at all.

    Args:
        program: what to save. Attributes are Python literals, arrays, graphs or programs.
        path: the file; replaced where it exists.
        origin: what load_origin returns.

    Raises:
        GraphError: an attribute has another type.
        OSError: the file cannot be written.
    """
    members = _members(program, origin)
    with replacing(path) as partial, open(partial, "w+b") as file:
        _write(file, members)


def program_bytes(program: Program) -> tuple[str, bytes]:
    """The digest of a program, and the content of the file that save_program would write."""
    file = io.BytesIO()
    found = _write(file, _members(program, None))
    return found, file.getvalue()


def _members(program: Program, origin: Optional[Json]) -> dict[str, Union[str, Array]]:
    """What the members of a program's file hold, by name."""
    arrays: dict[str, Array] = {}
    content = {"format": FORMAT, "version": VERSION, **_encode_program(program, arrays)}
    return {
        _ORIGIN: json.dumps(origin or {}, allow_nan=False),
        _STRUCTURE: json.dumps(content, allow_nan=False),
        **{f"{name}.npy": array for name, array in arrays.items()},
    }


def _write(file: BinaryIO, members: Mapping[str, Union[str, Array]]) -> str:
    """Writes the archive; returns its digest."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            if isinstance(content, str):
                archive.writestr(name, content)
                continue
            with archive.open(name, "w", force_zip64=True) as member:
                np.save(member, content, allow_pickle=False)
        found = members_digest(archive)
        archive.writestr(_DIGEST, found)
    return found


def load_origin(path: Union[str, Path]) -> Json:
    """Reads the `origin` of a saved program; {} if there is none or the file is damaged.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with open_regular(path) as file, open_zip(file) as archive:
            found: Json = parse_json(archive.read(_ORIGIN), dict)
            return found
    except ValueError:
        return {}


def load_program(path: Union[str, Path]) -> Program:
    """Reads a program that save_program wrote.

    Raises:
        GraphError: the file is damaged, of another kind or of another version.
        OSError: the file cannot be read.
    """
    with open_regular(path) as file:
        return _read(file, path)[1]


def parse_program(content: bytes) -> tuple[str, Program]:
    """The digest and the program of what `program_bytes` returned; compressed members are refused.

    Raises:
        GraphError: the content is damaged, of another kind or of another version.
    """
    return _read(io.BytesIO(content), "program", most=0)


def _read(
    file: BinaryIO, path: Union[str, Path], most: int = MAX_EXPANDED_BYTES
) -> tuple[str, Program]:
    """The digest and the program in an open file; `path` names it in errors."""
    try:
        with open_zip(file, most) as archive:
            structure = parse_json(archive.read(_STRUCTURE), {"format": object, "version": object})
            if structure["format"] != FORMAT:
                raise _fault(path, f"format must be '{FORMAT}'", structure["format"])
            if structure["version"] != VERSION:
                raise _fault(path, f"version must be {VERSION}", structure["version"])
            found = members_digest(archive)
            if archive.read(_DIGEST).decode() != found:
                raise _fault(path, "file must be as it was written", "another digest")
            return found, _decode_program(structure, _Arrays(archive))
    except GraphError as error:
        raise (error if str(path) in str(error) else GraphError(f"{path}: {error}")) from error
    except ValueError as error:
        raise _fault(path, "file must be a complete saved program", reason(error)) from error


def members_digest(archive: zipfile.ZipFile) -> str:
    """SHA-256, in hexadecimal, of the names and contents of all members but the digest itself."""
    found = hashlib.sha256()
    for name in sorted(set(archive.namelist()) - {_DIGEST}):
        content = archive.read(name)
        found.update(f"{name} {len(content)}\n".encode() + content)
    return found.hexdigest()


def _fault(path: Union[str, Path], rule: str, received: Any) -> GraphError:
    return GraphError(f"{path}: {rule}. Received: {received}. Compile the model again.")


class _Arrays:
    """Arrays of an open file by name, each read once."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._read: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._read:
            array: Array = read_array(self._archive, f"{name}.npy")
            self._read[name] = array
        return self._read[name]


def _encode_program(program: Program, arrays: dict[str, Array]) -> Json:
    return {
        "slots": [[str(s.type), s.kind, s.offset, s.base, s.life] for s in program.slots],
        "constants": {str(k): _keep(v, arrays) for k, v in program.constants.items()},
        "bodies": [[_encode_instruction(i, arrays) for i in body] for body in program.bodies],
        "steps": [entry.encode() for entry in program.schedule],
        "layers": [astuple(layer) for layer in program.layers],
        "features": program.features,
        "variables": program.variables,
        "results": program.results,
        "gradients": program.gradients,
        "staged": program.staged,
        "wafers": program.wafers,
        "homes": program.owners,
        "draws": {name: [d.key, d.stream, str(d.size)] for name, d in program.draws.items()},
        "packing": _encode_packing(program.packing, arrays),
        "global_step": program.global_step,
        "arena_bytes": program.arena_bytes,
    }


def _decode_program(found: Json, arrays: _Arrays) -> Program:
    return Program(
        slots=[_decode_slot(slot) for slot in found["slots"]],
        constants={int(slot): arrays[name] for slot, name in found["constants"].items()},
        bodies=[[_decode_instruction(i, arrays) for i in body] for body in found["bodies"]],
        schedule=[decode_entry(entry) for entry in found["steps"]],
        layers=[_decode_layer(layer) for layer in found["layers"]],
        features=dict(found["features"]),
        variables=dict(found["variables"]),
        results=dict(found["results"]),
        draws={n: Draw(a, b, parse_dim(size)) for n, (a, b, size) in found["draws"].items()},
        gradients={n: [tuple(slots) for slots in g] for n, g in found["gradients"].items()},
        staged=dict(found["staged"]),
        packing=_decode_packing(found["packing"], arrays),
        wafers=found["wafers"],
        owners=dict(found["homes"]),
        global_step=found["global_step"],
        arena_bytes=found["arena_bytes"],
    )


def _encode_packing(packing: Optional[Packing], arrays: dict[str, Array]) -> Optional[Json]:
    if packing is None:
        return None
    return {
        "graph": _encode(packing.graph, arrays),
        "spaces": [[s.name, [str(d) for d in s.dims], s.kind, s.values] for s in packing.spaces],
        "checks": [astuple(check) for check in packing.checks],
    }


def _decode_packing(found: Optional[Json], arrays: _Arrays) -> Optional[Packing]:
    if found is None:
        return None
    spaces = [
        TokenSpace(name, (parse_dim(dims[0]), parse_dim(dims[1])), kind, tuple(values))
        for name, dims, kind, values in found["spaces"]
    ]
    checks = tuple(Check(*fields) for fields in found["checks"])
    return Packing(_decode(found["graph"], arrays), tuple(spaces), checks)


def _decode_slot(found: list[Any]) -> Slot:
    type, kind, offset, base, (start, end) = found
    return Slot(parse_type(type), kind, offset, base, (start, end))


def _decode_layer(found: list[Any]) -> Layer:
    name, variables, weight_bytes, slots, slot_bytes = found
    return Layer(name, tuple(variables), weight_bytes, tuple(slots), slot_bytes)


def _encode_instruction(item: Instruction, arrays: dict[str, Array]) -> Json:
    attrs = {key: _encode(value, arrays) for key, value in item.attrs.items()}
    return {
        "op": item.op,
        "inputs": item.inputs,
        "outputs": item.outputs,
        "attrs": attrs,
        "source": item.source,
        "cost": astuple(item.cost),
    }


def _decode_instruction(found: Json, arrays: _Arrays) -> Instruction:
    attrs = {key: _decode(value, arrays) for key, value in found["attrs"].items()}
    inputs, outputs = tuple(found["inputs"]), tuple(found["outputs"])
    return Instruction(found["op"], inputs, outputs, attrs, found["source"], Cost(*found["cost"]))


def _encode(value: Any, arrays: dict[str, Array]) -> Any:
    """JSON of an attribute; what JSON cannot hold becomes an object of one tagged entry."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, (list, tuple)):
        items = [_encode(item, arrays) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {"dict": [[_encode(k, arrays), _encode(v, arrays)] for k, v in value.items()]}
    if isinstance(value, np.ndarray):
        return {"array": _keep(value, arrays)}
    if isinstance(value, Dim):
        return {"dim": str(value)}
    if isinstance(value, Program):
        return {"program": _encode_program(value, arrays)}
    if isinstance(value, Graph):
        constants = collect_constants(value)  # under the names that _keep gives
        arrays.update(constants)
        return {"graph": print_graph(value), "constants": sorted(constants)}
    raise GraphError(
        "saved program: attributes must be literals, arrays, graphs or programs. "
        f"Received: {type(value).__name__}. Convert the attribute where the node is made."
    )


def _decode(found: Any, arrays: _Arrays) -> Any:
    if isinstance(found, list):
        return [_decode(item, arrays) for item in found]
    if not isinstance(found, dict):
        return found
    if "graph" in found:
        return parse_graph(found["graph"], {name: arrays[name] for name in found["constants"]})
    ((kind, content),) = found.items()
    if kind == "float":
        return float(content)
    if kind == "tuple":
        return tuple(_decode(item, arrays) for item in content)
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "dict":
        return {_decode(key, arrays): _decode(value, arrays) for key, value in content}
    if kind == "array":
        return arrays[content]
    if kind == "dim":
        return parse_dim(content)
    if kind == "program":
        return _decode_program(content, arrays)
    raise GraphError(
        f"saved program: unknown kind of attribute. Received: {kind}. Compile the model again."
    )


def _keep(array: Array, arrays: dict[str, Array]) -> str:
    name = digest(array)
    arrays[name] = array
    return name
