"""Encodes keys and values of a distributed dictionary as bytes.

A record is a head and blobs. The first byte of the head says what follows, so that integers can be incremented in the
shard. Large buffers of a value (arrays, tensors, bytes) are blobs: they are written from the memory in which they are,
and read into the memory of the value.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zlib
from collections.abc import Callable
from hashlib import blake2b
from numbers import Complex, Number, Rational
from typing import TYPE_CHECKING, Any

from dragon.infrastructure.structs import msgspec
from dragon.runtime.serialization import dumps

if TYPE_CHECKING:
    import datetime
    import decimal

BLOB = 32 * 1024  # bytes from which a buffer is a blob

_INT, _STR, _BYTES, _PICKLE, _BUFFERS, _PLAIN_BLOB, _ARRAY = range(7)
FOREIGN = b"x"
"""The first byte of a key that a pickler of the program encoded."""

_COUNT = struct.Struct("<I")
_SIZE = struct.Struct("<Q")
_MOST_DIGITS = 100_000  # of a Decimal before or after its point, for it to be compared with integers and fractions
_SIMPLE = frozenset({float, bool, type(None)})


class Record(msgspec.Struct, frozen=True):
    """A value in its encoded form. `blobs` are bytes-like, in the order in which the head refers to them."""

    head: bytes
    blobs: list[Any]

    @property
    def size(self) -> int:
        """The size of the record in bytes."""
        size = len(self.head)
        for blob in self.blobs:
            size += memoryview(blob).nbytes
        return size

    @property
    def entries(self) -> int:
        """The number of a shard's entries that the record takes."""
        return 1 + len(self.blobs)

    def copied(self) -> Record:
        """Return the record with copies of its blobs."""
        return Record(self.head, [bytes(memoryview(blob)) for blob in self.blobs])


# ---- keys


def encode_key(key: Any) -> bytes:
    """Return a key as bytes, which are equal for keys that are equal in a dict: str, bytes, memoryview, numbers, None,
    range, tuple, frozenset, the types of datetime, UUID and paths, and subclasses that compare like these. Objects of
    other classes have the bytes of their pickles.

    Raises TypeError for a key that has no hash or cannot be pickled.
    """
    kind = type(key)
    if kind is str:
        text: str = key
        return b"s" + text.encode("utf-8", "surrogatepass")
    if kind is int or kind is bool:
        try:
            return b"i%d" % key
        except ValueError:  # it has more decimal digits than Python converts
            return b"I%x" % key
    if kind is bytes:
        data: bytes = key
        return b"b" + data
    return _encode_other(key)


def _encode_other(key: Any) -> bytes:
    hash(key)
    kind = type(key)
    if kind is float:
        return b"i%d" % int(key) if key.is_integer() else b"f" + struct.pack(">d", key)
    if kind in (tuple, frozenset):
        parts = [encode_key(part) for part in key]
        if kind is frozenset:
            parts.sort()
        return (b"t" if kind is tuple else b"z") + b"".join(_COUNT.pack(len(part)) + part for part in parts)
    plain = _plain(key)
    if type(plain) is not kind and plain == key and hash(plain) == hash(key):
        return encode_key(plain)
    for base in kind.__mro__:
        if form := _FORMS.get((base.__module__.removesuffix("._local"), base.__name__)):
            encoded = form[0] + encode_key(form[1](key))
            compares_as_base = kind.__eq__ is base.__eq__ and kind.__hash__ is base.__hash__
            if compares_as_base or ((made := decode_key(encoded)) == key and hash(made) == hash(key)):
                return encoded
            break
    return _pickled(key)


def _pickled(key: object) -> bytes:
    try:
        # Without a memo, so that the bytes do not depend on which parts are the same object.
        file = io.BytesIO()
        pickler = pickle.Pickler(file, 5)
        pickler.fast = True
        pickler.dump(key)
        return b"p" + file.getvalue()
    except (pickle.PicklingError, AttributeError, TypeError, ValueError, RecursionError):
        try:
            return b"p" + dumps(key)
        except Exception as error:
            raise TypeError(f"a key of type {type(key).__name__} cannot be pickled: {error}") from error


def _plain(key: object) -> object:
    """Return the object of a simpler type that may be equal to the key in a dict, else the key itself."""
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, (bytes, memoryview)):
        return memoryview(key).tobytes()
    if isinstance(key, (tuple, frozenset)):
        return tuple(key) if isinstance(key, tuple) else frozenset(key)
    kind = type(key)
    is_truth = kind.__module__ == "numpy" and kind.__name__.startswith("bool")  # not a Number in Python
    return _plain_number(key) if is_truth or isinstance(key, Number) else key


def _plain_number(key: Any) -> object:
    number = getattr(key, "real", key)
    try:
        if isinstance(key, Complex) and key.imag != 0:
            return complex(key)
        if isinstance(number, Rational) and number.denominator == 1:
            return int(number.numerator)
        if type(number).__name__ == "Decimal" and number.is_finite():
            if abs(number.adjusted()) > _MOST_DIGITS:
                return key
            whole, divisor = number.as_integer_ratio()
            return whole if divisor == 1 else _near(_fraction(whole, divisor))
        return _near(number)
    except (OverflowError, TypeError, ValueError):
        return key  # no plain number is equal to it


def _near(number: Any) -> object:
    """Return the int or float that is equal to a number, else the number itself."""
    try:
        near = float(number)
        return whole if math.isfinite(near) and (whole := int(number)) == number else near if near == number else number
    except OverflowError:
        return number


def _fraction(numerator: int, denominator: int) -> object:
    from fractions import Fraction  # loaded only if there are such keys

    return Fraction(numerator, denominator)


def _parts_of_range(key: range) -> tuple[int, ...]:
    return () if not key else (key[0],) if key[0] == key[-1] else (key[0], key[-1], key.step)


def _parts_of_decimal(key: decimal.Decimal) -> tuple[object, ...]:
    sign, digits, exponent = key.as_tuple()
    text = "".join(map(str, digits))
    kept = text.rstrip("0")
    return sign, kept, int(exponent) + len(text) - len(kept) if kept else exponent


def _parts_of_duration(key: datetime.timedelta) -> tuple[int, int, int]:
    return key.days, key.seconds, key.microseconds


def _parts_of_moment(key: datetime.datetime | datetime.time) -> tuple[object, ...]:
    """Return what decides whether datetimes, or times, are equal: the moment in UTC, if they have an offset."""
    import datetime

    days = key.toordinal() if isinstance(key, datetime.date) else 0
    local = datetime.timedelta(days, key.second, key.microsecond, 0, key.minute, key.hour)
    offset = key.replace(fold=0).utcoffset()
    if offset is None:
        return 0, *_parts_of_duration(local)
    if offset == key.replace(fold=1).utcoffset():
        return 1, *_parts_of_duration(local - offset)
    # When a clock is changed, a time is equal to those of the same time zone only.
    return 2, *_parts_of_duration(local), _pickled(key.tzinfo)


# How keys of other types are encoded, by module and name, as most programs need not load the modules: the first byte,
# and a function that returns a tuple, which is equal for equal keys.
_FORMS: dict[tuple[str, str], tuple[bytes, Callable[[Any], tuple[Any, ...]]]] = {
    ("builtins", "complex"): (b"c", lambda key: (key.real, key.imag)),
    ("builtins", "range"): (b"r", _parts_of_range),
    ("decimal", "Decimal"): (b"N", _parts_of_decimal),
    ("fractions", "Fraction"): (b"q", lambda key: (key.numerator, key.denominator)),
    ("datetime", "datetime"): (b"T", _parts_of_moment),
    ("datetime", "date"): (b"D", lambda key: (key.toordinal(),)),
    ("datetime", "time"): (b"M", _parts_of_moment),
    ("datetime", "timedelta"): (b"E", _parts_of_duration),
    ("datetime", "timezone"): (b"Z", lambda key: _parts_of_duration(key.utcoffset(None))),
    ("uuid", "UUID"): (b"U", lambda key: (key.int,)),
    ("pathlib", "PurePosixPath"): (b"P", lambda key: (str(key),)),
    ("pathlib", "PureWindowsPath"): (b"W", lambda key: (str(key).lower(),)),
}


def _of_parts(kind: bytes, parts: tuple[Any, ...], loads: Callable[..., Any]) -> object:
    """Return a key of the parts that the function in _FORMS returned."""
    import datetime
    import decimal
    import pathlib
    import uuid

    if kind == b"r":
        first, last, step = parts if len(parts) == 3 else (*parts, *parts, 1) if parts else (0, -1, 1)
        return range(first, last + (1 if step > 0 else -1), step)
    if kind in (b"T", b"M"):
        return _moment(kind == b"M", *parts, loads=loads)
    make: dict[bytes, Callable[..., Any]] = {
        b"c": complex,
        b"N": lambda sign, digits, exponent: decimal.Decimal((sign, tuple(map(int, digits)), exponent)),
        b"q": _fraction,
        b"D": datetime.date.fromordinal,
        b"E": datetime.timedelta,
        b"Z": lambda *parts: datetime.timezone(datetime.timedelta(*parts)),
        b"U": lambda number: uuid.UUID(int=number),
        b"P": pathlib.PurePosixPath,
        b"W": pathlib.PureWindowsPath,
    }
    return make[kind](*parts)


def _moment(
    is_time: bool, kind: int, days: int, seconds: int, micros: int, zone: bytes = b"", *, loads: Callable[..., Any]
) -> object:
    import datetime

    day, second = datetime.timedelta(1), datetime.timedelta(seconds=1)
    first, last = (day * 0, day) if is_time else (day, day * (datetime.date.max.toordinal() + 1))
    since = datetime.timedelta(days, seconds, micros)
    # At the ends, which are not in UTC, another zone is used.
    shown = since + second * max(0, -((since - first) // second)) - second * max(0, (since - last) // second + 1)
    tzinfo = None if kind == 0 else datetime.timezone(shown - since) if kind == 1 else loads(zone[1:])
    made = datetime.datetime.min + (shown if is_time else shown - day)
    return (made.time() if is_time else made).replace(tzinfo=tzinfo)


def decode_key(data: bytes, loads: Callable[..., Any] = pickle.loads) -> Any:
    """Return the key that encode_key() encoded, or one that is equal: of several equal keys, the one of the simplest
    type. `loads` loads a pickled key.

    Of a key that a pickler of the program encoded, return the bytes.
    """
    kind, body = data[:1], data[1:]
    if kind == b"s":
        return body.decode("utf-8", "surrogatepass")
    if kind in (b"i", b"I"):
        return int(body, 10 if kind == b"i" else 16)
    if kind in (b"b", FOREIGN):
        return body
    if kind == b"f":
        return struct.unpack(">d", body)[0]
    if kind in (b"t", b"z"):
        parts, start = [], 0
        while start < len(body):
            (size,) = _COUNT.unpack_from(body, start)
            parts.append(decode_key(body[start + 4 : start + 4 + size], loads))
            start += 4 + size
        return tuple(parts) if kind == b"t" else frozenset(parts)
    return loads(body) if kind == b"p" else _of_parts(kind, decode_key(body, loads), loads)


def place_of(key: bytes, managers: int) -> int:
    """Return which of `managers` managers holds a key, by its hash."""
    return zlib.crc32(key) % managers


def digest(key: bytes) -> bytes:
    """Return a digest of a key, of 16 bytes."""
    return blake2b(key, digest_size=16).digest()


# ---- values


def encode_value(value: Any) -> Record:
    """Return the record of a value. Raises the exceptions of its pickling."""
    kind = type(value)
    if kind is int:
        return Record(of_int(value), [])
    if kind is str:
        text = value.encode("utf-8", "surrogatepass")
        if len(text) < BLOB:
            return Record(b"\1" + text, [])
    elif kind is bytes:
        return Record(b"\2" + value, []) if len(value) < BLOB else Record(bytes([_PLAIN_BLOB]), [value])
    elif kind in _SIMPLE:
        return Record(b"\3" + pickle.dumps(value, 5), [])
    elif kind.__name__ == "ndarray" and kind.__module__ == "numpy" and _is_plain_array(value):
        flat = value if value.ndim == 1 else value.reshape(-1)
        shape = b"".join(map(_SIZE.pack, value.shape))
        return Record(b"%c%b%b" % (_ARRAY, value.dtype.char.encode(), shape), [memoryview(flat.view("u1"))])
    return _encode_object_value(value)


def _is_plain_array(value: Any) -> bool:
    """Return whether a NumPy array is described by its dtype, shape and numbers alone, which are faster to encode."""
    dtype = value.dtype
    plain = dtype.isbuiltin == 1 and not dtype.hasobject and dtype.metadata is None
    return bool(plain and value.nbytes >= BLOB and value.flags.c_contiguous)


def _encode_object_value(value: object) -> Record:
    buffers: list[memoryview] = []
    data = dumps(value, lambda buffer: buffers.append(buffer.raw()), lasting=True)
    if not buffers:
        return Record(b"\3" + data, [])
    # Small buffers follow the head, large ones are blobs, which have bit 63 set in their size.
    blobs, sizes, following = [], [], []
    for buffer in buffers:
        if buffer.nbytes >= BLOB:
            blobs.append(buffer)
            sizes.append(buffer.nbytes | 1 << 63)
        else:
            following.append(bytes(buffer))
            sizes.append(buffer.nbytes)
    table = b"".join(map(_SIZE.pack, sizes))
    return Record(b"".join([bytes([_BUFFERS]), _COUNT.pack(len(sizes)), table, *following, data]), list(blobs))


def decode_value(head: bytes, blob: Callable[[int, bool], Any], loads: Callable[..., Any] = pickle.loads) -> object:
    """Return the value of a record. `blob(index, as_bytes)` returns a blob, `loads` loads a pickle."""
    kind = head[0]
    if kind == _INT:
        return int.from_bytes(head[1:], "little", signed=True)
    if kind == _STR:
        return head[1:].decode("utf-8", "surrogatepass")
    if kind == _BYTES:
        return head[1:]
    if kind == _PICKLE:
        return loads(memoryview(head)[1:])
    if kind == _PLAIN_BLOB:
        return blob(0, True)
    return _object_value(head, blob, loads)


def _object_value(head: bytes, blob: Callable[[int, bool], Any], loads: Callable[..., Any]) -> object:
    if head[0] == _ARRAY:
        import numpy  # only needed if the value is an array

        shape = struct.unpack_from(f"<{(len(head) - 2) // 8}Q", head, 2)
        return numpy.frombuffer(blob(0, False), chr(head[1])).reshape(shape)
    if head[0] != _BUFFERS:
        raise ValueError(f"a record of kind {head[0]} is of another version, or damaged")
    (count,) = _COUNT.unpack_from(head, 1)
    start, blobs, buffers = 5 + 8 * count, 0, []
    for i in range(count):
        (size,) = _SIZE.unpack_from(head, 5 + 8 * i)
        if size >> 63:
            buffers.append(blob(blobs, False))
            blobs += 1
        else:
            buffers.append(bytearray(head[start : start + size]))
            start += size
    return loads(memoryview(head)[start:], buffers=buffers)


def bytes_in(head: bytes, blobs: int) -> int:
    """Return the length of the bytes object in a record with `blobs` bytes of blobs, -1 for any other value."""
    if head[0] == _BYTES:
        return len(head) - 1
    return blobs if head[0] == _PLAIN_BLOB else -1


def of_int(value: int) -> bytes:
    """Return the head of an integer's record."""
    return b"\0" + value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def int_of(head: bytes) -> int | None:
    """Return the integer in a head; None if it has another value."""
    return int.from_bytes(head[1:], "little", signed=True) if head[0] == _INT else None
