# SPDX-License-Identifier: Apache-2.0
"""The protobuf wire format in the small: what the codecs for messages with records need.

The generated classes copy every `bytes` field. For messages that carry megabytes of records the codecs of this package
write the few fields around the records themselves and pass the records on untouched. What they write and accept is what
protobuf writes and accepts, except for groups, which the protocol does not use and which are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from fluss.errors import FormatError
from fluss.protocol.frames import Buffer

VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
FIXED32: Final = 5

_VARINT_BYTES_MAX = 10
_TAG_BYTES_MAX = 5
FIELDS_MAX: Final = 200_000
"""Fields of one message without a protobuf object. Each blocks the event loop for about a microsecond."""
_PACKED_BYTES_MAX = 32 * 1024
_ALL_FIELDS_MAX = 400_000
"""Fields of a message and those nested in it: 50,000 items with the numbers in them are fewer."""
_UNFINISHED = bytes(range(128, 256))
"""The bytes of a varint before its last."""
_WITH_LENGTH = frozenset({FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE})
_NAMED_BYTES_MAX = 16 * 1024
_NAMES_MAX = 8
_MASK64 = 0xFFFF_FFFF_FFFF_FFFF
_ONE_BYTE = tuple(bytes((value,)) for value in range(128))

MessageT = TypeVar("MessageT", bound=Message)


# ---- writing ----


def encode_varint(value: int) -> bytes:
    """A varint; negative numbers become their 64-bit two's complement, ten bytes long."""
    if 0 <= value < 128:
        return _ONE_BYTE[value]
    value &= _MASK64
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def int_field(number: int, value: int | None) -> bytes:
    """An int32, int64 or bool field; nothing when the value is None."""
    if value is None:
        return b""
    return encode_varint(number << 3) + encode_varint(value)


def length_prefix(number: int, size_bytes: int) -> bytes:
    """What comes before the content of a bytes, string or message field."""
    return encode_varint(number << 3 | LENGTH_DELIMITED) + encode_varint(size_bytes)


def bytes_field(number: int, value: bytes | None) -> bytes:
    if value is None:
        return b""
    return length_prefix(number, len(value)) + value


def string_field(number: int, value: str | None) -> bytes:
    return bytes_field(number, None if value is None else value.encode("utf-8", "replace"))


# ---- reading ----


class Field(NamedTuple):
    """One field as found on the wire: `value` for numbers, `start` and `end` for everything with a length."""

    number: int
    wire_type: int
    value: int
    start: int
    end: int


def read_varint(data: memoryview, pos: int, end: int, what: str, size_max: int = _VARINT_BYTES_MAX) -> tuple[int, int]:
    """The unsigned 64-bit value at `pos` and the position behind it."""
    value = 0
    shift = 0
    at = pos
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & _MASK64, at
        shift += 7
        if at - pos >= size_max:
            raise FormatError(f"{what}: number at position {pos} is longer than {size_max} bytes")
    raise FormatError(f"{what}: number at position {pos} is cut off at position {end}")


def iter_fields(
    data: memoryview,
    start: int,
    end: int,
    what: str,
    fields_max: int = FIELDS_MAX,
    too_many: type[FormatError] = FormatError,
) -> Iterator[Field]:
    """The fields of the message in `data[start:end]`. `what` names the message in errors.

    More than `fields_max` fields are an error of the type `too_many`.
    """
    pos = start
    left = fields_max
    while pos < end:
        at = pos
        left -= 1
        if left < 0:
            raise too_many(f"{what}: more than {fields_max} fields")
        tag = data[pos]
        if tag < 128:
            pos += 1
        else:
            tag, pos = read_varint(data, pos, end, what, _TAG_BYTES_MAX)
        number = tag >> 3
        wire_type = tag & 7
        if number == 0 or number >= 1 << 29:
            raise FormatError(f"{what}: impossible field number {number} at position {at}")
        if wire_type in (VARINT, LENGTH_DELIMITED):
            if pos < end and data[pos] < 128:
                value = data[pos]
                pos += 1
            else:
                value, pos = read_varint(data, pos, end, f"{what} field {number}")
            if wire_type == VARINT:
                yield Field(number, wire_type, value, pos, pos)
                continue
            size = value
        elif wire_type == FIXED64:
            size = 8
        elif wire_type == FIXED32:
            size = 4
        else:
            raise FormatError(f"{what} field {number}: unknown wire type {wire_type} at position {at}")
        if size > end - pos:
            raise FormatError(
                f"{what} field {number}: {size} bytes announced at position {at}, but only {end - pos} bytes are left"
            )
        yield Field(number, wire_type, 0, pos, pos + size)
        pos += size


def as_int32(value: int) -> int:
    value &= 0xFFFF_FFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def as_int64(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def read_string(data: memoryview, field: Field, what: str) -> str:
    try:
        return str(data[field.start : field.end], "utf-8")
    except UnicodeDecodeError as error:
        position = field.start + error.start
        raise FormatError(f"{what} field {field.number}: text is not UTF-8 at position {position}") from None


def read_int32s(data: memoryview, field: Field, into: list[int], what: str) -> None:
    """Append the numbers of a repeated int32 field, packed or not."""
    if field.wire_type == VARINT:
        into.append(as_int32(field.value))
        return
    if field.wire_type == LENGTH_DELIMITED:
        if field.end - field.start > _PACKED_BYTES_MAX:
            raise FormatError(f"{what} field {field.number}: a list of more than {_PACKED_BYTES_MAX} bytes")
        pos = field.start
        while pos < field.end:
            value, pos = read_varint(data, pos, field.end, f"{what} field {field.number}")
            into.append(as_int32(value))


def missing(what: str, *names: str) -> FormatError:
    return FormatError(f"{what}: required field missing: {', '.join(names)}")


# ---- whole messages through the generated classes ----


def parse_message(
    message_type: type[MessageT],
    body: Buffer,
    *,
    require_all: bool = True,
    check_text: bool = True,
    items_max: int | None = None,
) -> MessageT:
    """Parse a generated message, with errors of our own.

    Servers ask for all required fields. Clients do not: some servers leave out a required number that is zero. Who
    reads the text fields with `text_of` need not have all of them checked. `items_max` bounds the elements of repeated
    fields and the nested messages, at all depths.
    """
    descriptor: Any = message_type.DESCRIPTOR
    name = descriptor.name
    # An item takes a byte at least.
    if items_max is not None and len(body) > items_max:
        _check_items(descriptor, memoryview(body), items_max)
    message = message_type()
    try:
        message.ParseFromString(body if type(body) is bytes else bytes(body))
    except (DecodeError, UnicodeDecodeError):
        raise FormatError(f"Body of {len(body)} bytes is not a valid {name} message") from None
    if require_all and not message.IsInitialized():
        if len(body) > _NAMED_BYTES_MAX:
            # Naming them takes minutes for large messages, and the runtime was seen to crash over it.
            raise missing(name, "at least one")
        untyped: Any = message  # the published types leave the method out
        raise missing(name, *untyped.FindInitializationErrors()[:_NAMES_MAX])
    if check_text:
        _check_text(message, descriptor, name)
    return message


def _check_items(descriptor: Descriptor, data: memoryview, items_max: int) -> None:
    """Refuse a message with too many items before it is parsed.

    The parser holds the interpreter lock until it is done, 0.4 s for the smallest items in 4 MB.
    """
    items_left, fields_left = items_max, _ALL_FIELDS_MAX
    unseen = [(descriptor, 0, len(data))]
    while unseen:
        inside, start, end = unseen.pop()
        fields = _fields_with_items(inside)
        for found in iter_fields(data, start, end, inside.name):
            fields_left -= 1
            if fields_left < 0:
                raise FormatError(f"{descriptor.name} has more than {_ALL_FIELDS_MAX} fields; send several requests")
            if found.number not in fields:
                continue
            nested, may_be_packed = fields[found.number]
            if nested is not None:
                unseen.append((nested, found.start, found.end))
            if may_be_packed and found.wire_type == LENGTH_DELIMITED:
                items_left -= len(bytes(data[found.start : found.end]).translate(None, _UNFINISHED))
            else:
                items_left -= 1
            if items_left < 0:
                raise FormatError(f"{descriptor.name} has more than {items_max} items; send several requests")


@cache
def _fields_with_items(descriptor: Descriptor) -> dict[int, tuple[Descriptor | None, bool]]:
    """(descriptor of the nested message, whether several numbers may be packed into one field), by field number."""
    return {
        field.number: (field.message_type, field.type not in _WITH_LENGTH)
        for field in descriptor.fields
        if field.message_type is not None or _is_repeated(field)
    }


def text_of(message: Message, name: str) -> str | None:
    """An optional text field, None where it is not set. Bytes that are not UTF-8 are refused."""
    if not message.HasField(name):
        return None
    value: object = getattr(message, name)
    if type(value) is not str:
        descriptor: Any = message.DESCRIPTOR
        raise FormatError(f"{descriptor.name}.{name}: text is not UTF-8")
    return value


@cache
def _fields_with_text(descriptor: Descriptor) -> tuple[tuple[str, bool, Descriptor | None], ...]:
    """(name, repeated, descriptor of the nested message) of the fields that are text or contain text."""
    return _collect_text_fields(descriptor, ())


def _collect_text_fields(
    descriptor: Descriptor, above: tuple[str, ...]
) -> tuple[tuple[str, bool, Descriptor | None], ...]:
    found: list[tuple[str, bool, Descriptor | None]] = []
    for field in descriptor.fields:
        repeated = _is_repeated(field)
        nested = field.message_type
        if nested is not None:
            # A message that contains itself is searched once: deeper levels have the same fields.
            path = (*above, descriptor.full_name)
            if nested.full_name in path or _collect_text_fields(nested, path):
                found.append((field.name, repeated, nested))
        elif field.type == FieldDescriptor.TYPE_STRING:
            found.append((field.name, repeated, None))
    return tuple(found)


def _is_repeated(field: FieldDescriptor) -> bool:
    # `label` is deprecated in newer runtimes, `is_repeated` is missing in older ones.
    untyped: Any = field
    if hasattr(field, "is_repeated"):
        return bool(untyped.is_repeated)
    return bool(untyped.label == FieldDescriptor.LABEL_REPEATED)


def _check_text(message: Message, descriptor: Descriptor, what: str) -> None:
    """Refuse text that is not UTF-8: the parser does not, and hands out `bytes` where `str` is promised."""
    for name, repeated, nested in _fields_with_text(descriptor):
        value = getattr(message, name)
        if nested is not None:
            if repeated:
                for index, item in enumerate(value):
                    _check_text(item, nested, f"{what}.{name}[{index}]")
            elif message.HasField(name):
                _check_text(value, nested, f"{what}.{name}")
        elif repeated:
            for index, item in enumerate(value):
                if type(item) is not str:
                    raise FormatError(f"{what}.{name}[{index}]: text is not UTF-8")
        elif type(value) is not str:
            raise FormatError(f"{what}.{name}: text is not UTF-8")
