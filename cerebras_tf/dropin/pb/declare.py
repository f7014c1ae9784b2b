"""Builds protocol buffer classes from tables of fields, without a .proto compiler.

The classes behave like generated ones. Field numbers follow the order of the table, so the binary
format differs from the original software's; text and JSON depend on names only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

PACKAGE = "cerebras"
_SCALARS = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "string": FieldDescriptorProto.TYPE_STRING,
}
# A separate pool, so that messages of other libraries may have the same names.
_pool = descriptor_pool.DescriptorPool()


@dataclass(frozen=True)
class Message:
    """Type of a field whose message class is nested in the outer class."""

    name: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Enum:
    """Type of a field whose enum is nested in the outer class."""

    name: str
    values: Mapping[str, int]


@dataclass(frozen=True)
class Repeated:
    """Type of a repeated field."""

    item: Any


@dataclass(frozen=True)
class MapTo:
    """Type of a map field with string keys."""

    value: Any


def declare_enum(name: str, values: Mapping[str, int]) -> EnumTypeWrapper:
    """Returns an enum: `Name(number)`, `Value(name)`, and each value as an attribute.

    The first of the values is the default of a field.
    """
    file = _new_file(name)
    _fill_enum(file.enum_type.add(), name, values)
    _pool.Add(file)
    return EnumTypeWrapper(_pool.FindEnumTypeByName(f"{PACKAGE}.{name}"))


def declare_message(name: str, fields: Mapping[str, Any]) -> Any:
    """Returns a message class.

    Args:
      name: the name of the class.
      fields: field name to "bool", "int32", "int64", "double", "string", an enum of
        `declare_enum`, or one of the types above. A dict is a `Message` named like the field
        in CamelCase.
    """
    file = _new_file(name)
    _fill_message(file, file.message_type.add(), name, fields, scope=f".{PACKAGE}")
    _pool.Add(file)
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def _new_file(name: str) -> FileDescriptorProto:
    return FileDescriptorProto(name=f"{name}.proto", package=PACKAGE, syntax="proto2")


def _fill_enum(enum: EnumDescriptorProto, name: str, values: Mapping[str, int]) -> None:
    enum.name = name
    for value_name, number in values.items():
        enum.value.add(name=value_name, number=number)


def _fill_message(
    file: FileDescriptorProto,
    message: DescriptorProto,
    name: str,
    fields: Mapping[str, Any],
    scope: str,
) -> None:
    message.name = name
    for number, (field_name, kind) in enumerate(fields.items(), start=1):
        field = message.field.add(
            name=field_name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL
        )
        if isinstance(kind, Repeated):
            field.label = FieldDescriptorProto.LABEL_REPEATED
            kind = kind.item
        _set_type(file, message, field, kind, f"{scope}.{name}")


def _set_type(
    file: FileDescriptorProto,
    message: DescriptorProto,
    field: FieldDescriptorProto,
    kind: Any,
    scope: str,
) -> None:
    """Sets a field's type and adds nested classes to `message`, whose full name is `scope`."""
    camel_case = "".join(part.capitalize() for part in field.name.split("_"))
    if isinstance(kind, str):
        field.type = _SCALARS[kind]
    elif isinstance(kind, EnumTypeWrapper):
        field.type = FieldDescriptorProto.TYPE_ENUM
        field.type_name = f".{kind.DESCRIPTOR.full_name}"
        if kind.DESCRIPTOR.file.name not in file.dependency:
            file.dependency.append(kind.DESCRIPTOR.file.name)
    elif isinstance(kind, Enum):
        field.type = FieldDescriptorProto.TYPE_ENUM
        field.type_name = f"{scope}.{kind.name}"
        _fill_enum(message.enum_type.add(), kind.name, kind.values)
    elif isinstance(kind, MapTo):
        # A map is a repeated message of key and value; protocol buffers prescribe its name.
        field.label = FieldDescriptorProto.LABEL_REPEATED
        entry = Message(f"{camel_case}Entry", {"key": "string", "value": kind.value})
        _set_type(file, message, field, entry, scope)
        message.nested_type[-1].options.map_entry = True
    else:
        nested = kind if isinstance(kind, Message) else Message(camel_case, kind)
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f"{scope}.{nested.name}"
        _fill_message(file, message.nested_type.add(), nested.name, nested.fields, scope)
