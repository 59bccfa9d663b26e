"""JSON both ways for the dataclasses of `records.py`.

Numbers that JSON cannot write are the strings "NaN", "Infinity" and "-Infinity". A member that is
None is left out. A list or a record within a record is read into its class. Members that are not
known are passed over, so that an answer of a newer controller can be read.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import math
import types
import typing
from typing import Any, TypeVar

from gnomon.errors import GnomonError

R = TypeVar("R")

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class BadRecord(GnomonError, ValueError):
    """A message that is not what its class says: which member, what it is, what is expected."""


def number_to_json(value: float) -> float | str:
    """The number, or its word where JSON has none."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def to_value(record: Any) -> Any:
    """What `json.dumps` takes, of a record, a list, a mapping or a plain value."""
    if dataclasses.is_dataclass(record):
        members = ((name, getattr(record, name)) for name in _hints(type(record)))
        return {name: to_value(value) for name, value in members if value is not None}
    if isinstance(record, float):
        return number_to_json(record)
    if isinstance(record, list | tuple):
        return [to_value(item) for item in record]
    if isinstance(record, dict):
        return {name: to_value(value) for name, value in record.items()}
    return record


def to_json(record: Any) -> str:
    """One line of JSON."""
    return json.dumps(to_value(record), separators=(",", ":"), allow_nan=False)


def from_json(kind: type[R], text: str | bytes) -> R:
    """Reads one record. Raises BadRecord."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadRecord(f"{kind.__name__}: not JSON ({error})") from None
    return from_value(kind, value)


def from_value(kind: type[R], value: Any) -> R:
    """Reads a record from what `json.loads` gave. Raises BadRecord."""
    record: R = _read(kind, value, kind.__name__)
    return record


_hints_of: dict[Any, dict[str, Any]] = {}


def _hints(kind: Any) -> dict[str, Any]:
    hints = _hints_of.get(kind)
    if hints is None:
        hints = _hints_of[kind] = typing.get_type_hints(kind)
    return hints


def _read(kind: Any, value: Any, place: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is types.UnionType or origin is typing.Union:
        if value is None:
            return None
        inner = next(each for each in typing.get_args(kind) if each is not type(None))
        return _read(inner, value, place)
    if origin in (list, collections.abc.Sequence):
        if not isinstance(value, list):
            raise _wrong(place, value, "an array")
        item = typing.get_args(kind)[0]
        return [_read(item, each, f"{place}[{i}]") for i, each in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            raise _wrong(place, value, "an object")
        item = typing.get_args(kind)[1]
        return {name: _read(item, each, f"{place}.{name}") for name, each in value.items()}
    if dataclasses.is_dataclass(kind):
        return _read_record(kind, value, place)
    return _read_plain(kind, value, place)


def _read_record(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(place, value, "an object")
    members = {}
    for each in dataclasses.fields(kind):
        if each.name in value:
            hint = _hints(kind)[each.name]
            members[each.name] = _read(hint, value[each.name], f"{place}.{each.name}")
        elif each.default is each.default_factory:  # both are MISSING
            raise BadRecord(f"{place}.{each.name} is missing")
    return kind(**members)


def _read_plain(kind: Any, value: Any, place: str) -> Any:
    if kind is float:
        if isinstance(value, str) and value in _WORDS:
            return _WORDS[value]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(place, value, 'a number, "NaN", "Infinity" or "-Infinity"')
        return float(value)
    if kind is int and (isinstance(value, bool) or not isinstance(value, int)):
        raise _wrong(place, value, "a whole number")
    if kind is bool and not isinstance(value, bool):
        raise _wrong(place, value, "true or false")
    if kind is str and not isinstance(value, str):
        raise _wrong(place, value, "a string")
    return value


def _wrong(place: str, value: Any, accepted: str) -> BadRecord:
    return BadRecord(f"{place}: {json.dumps(value)[:100]} not accepted; expected {accepted}")
