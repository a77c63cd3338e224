# SPDX-License-Identifier: Apache-2.0
"""One engine for the options of the client, the server, Spark and tables.

Each of them is a table of rows: key, type, default, meaning, aliases, and whether it can change at run time. Parsing,
error messages, suggestions for misspelt keys and the tables of docs/configuration.md follow from the rows. A type turns
text or a native value into its typed value, says in words what it accepts, and shows values as people write them.
"""

from __future__ import annotations

import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from fluss.errors import ConfigError, FlussError, InvalidConfigError

INT_MIN = -(2**31)
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

KB = 1024
MB = 1024 * KB
GB = 1024 * MB

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

T_co = TypeVar("T_co", covariant=True)

_DURATION_UNITS_NS: dict[str, int] = {}
for _names, _factor in (
    (("d", "day", "days"), 86_400_000_000_000),
    (("h", "hour", "hours"), 3_600_000_000_000),
    (("min", "m", "minute", "minutes"), 60_000_000_000),
    (("s", "sec", "secs", "second", "seconds"), 1_000_000_000),
    (("ms", "milli", "millis", "millisecond", "milliseconds"), 1_000_000),
    (("µs", "μs", "us", "micro", "micros", "microsecond", "microseconds"), 1_000),
    (("ns", "nano", "nanos", "nanosecond", "nanoseconds"), 1),
):
    _DURATION_UNITS_NS.update(dict.fromkeys(_names, _factor))

_SIZE_UNITS: dict[str, int] = {"": 1}
for _names, _factor in (
    (("b", "byte", "bytes"), 1),
    (("k", "kb", "kibibyte", "kibibytes"), KB),
    (("m", "mb", "mebibyte", "mebibytes"), MB),
    (("g", "gb", "gibibyte", "gibibytes"), GB),
    (("t", "tb", "tebibyte", "tebibytes"), 1024 * GB),
):
    _SIZE_UNITS.update(dict.fromkeys(_names, _factor))

_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]{1,19})\s*([^\W\d_]*)\s*")
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,20}\s*")


def parse_duration_ms(text: str) -> int:
    """Read ``"7 d"`` as milliseconds: a number and one of d, h, min, s, ms, µs, ns; less than 1 ms is dropped."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    factor = _DURATION_UNITS_NS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InvalidConfigError(
            f"{text!r:.80} is not a duration: expected a number and a unit such as '7 d', '12 h', '30 min', '100 ms'"
        )
    duration_ms = int(match[1]) * factor // 1_000_000
    if duration_ms > LONG_MAX:
        raise InvalidConfigError(f"duration {text!r:.80} is too long")
    return duration_ms


def parse_memory_size(text: str) -> int:
    """Read ``"64mb"`` as bytes: a number and one of b (default), kb, mb, gb, tb, in steps of 1024."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    factor = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InvalidConfigError(
            f"{text!r:.80} is not a size: expected a number and a unit such as '1024', '64 kb', '32 mb', '1 gb'"
        )
    size_bytes = int(match[1]) * factor
    if size_bytes > LONG_MAX:
        raise InvalidConfigError(f"size {text!r:.80} is too large")
    return size_bytes


def _whole(value: object) -> int | None:
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class OptionType(ABC, Generic[T_co]):
    """What an option takes."""

    kind: ClassVar[str]
    """The name of the type in tables of the documentation."""

    @abstractmethod
    def convert(self, value: object) -> T_co | None:
        """Turn text or a native value into the typed value; None if it is not accepted."""

    @abstractmethod
    def allowed(self) -> str:
        """Describe what is accepted."""

    def show(self, value: object) -> str:
        """Write a value as a person would write it."""
        return str(value)


class Text(OptionType[str]):
    """Any string."""

    kind = "string"

    def convert(self, value: object) -> str | None:
        return value if isinstance(value, str) else None

    def allowed(self) -> str:
        return "a string"


class _Bounded(OptionType[int]):
    """A whole number of something within bounds."""

    def __init__(self, minimum: int = 0, maximum: int = LONG_MAX) -> None:
        self.minimum = minimum
        self.maximum = maximum

    def _within(self, number: int | None) -> int | None:
        return number if number is not None and self.minimum <= number <= self.maximum else None


class Whole(_Bounded):
    """A whole number; of 32 bits unless stated otherwise."""

    kind = "int"

    def __init__(self, minimum: int = 0, maximum: int = INT_MAX) -> None:
        super().__init__(minimum, maximum)

    def convert(self, value: object) -> int | None:
        return self._within(_whole(value))

    def allowed(self) -> str:
        end = "on" if self.maximum >= LONG_MAX else f"to {self.maximum}"
        return f"a whole number from {self.minimum} {end}"

    def show(self, value: object) -> str:
        return "no limit" if value == INT_MAX else str(value)


class Number(OptionType[float]):
    """A number with or without a fraction, not negative."""

    kind = "double"

    def convert(self, value: object) -> float | None:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            return None
        try:
            number = float(value)
        except (ValueError, OverflowError):
            return None
        return number if math.isfinite(number) and number >= 0 else None

    def allowed(self) -> str:
        return "a number from 0 on, such as 0.95"


class Boolean(OptionType[bool]):
    """True or false, in any case."""

    kind = "boolean"

    def convert(self, value: object) -> bool | None:
        if isinstance(value, str):
            return {"true": True, "false": False}.get(value.strip().lower())
        return value if isinstance(value, bool) else None

    def allowed(self) -> str:
        return "true or false"

    def show(self, value: object) -> str:
        return str(value).lower()


class Duration(_Bounded):
    """A time span, kept as milliseconds; with `bare`, a number without a unit is taken as milliseconds."""

    kind = "duration"

    def __init__(self, minimum: int = 0, maximum: int = LONG_MAX, *, bare: bool = False) -> None:
        super().__init__(minimum, maximum)
        self.bare = bare

    def convert(self, value: object) -> int | None:
        number = _whole(value) if self.bare else None
        if number is None and isinstance(value, str):
            try:
                number = parse_duration_ms(value)
            except InvalidConfigError:
                return None
        return self._within(number)

    def allowed(self) -> str:
        words = "a number and a unit such as '100 ms', '30 s', '10 min' or '7 d'"
        words = f"a whole number of milliseconds, or {words}" if self.bare else words
        if self.minimum > 0:
            words += f", from {self.show(self.minimum)}"
        return words + (f" to {self.show(self.maximum)}" if self.maximum < LONG_MAX else "")

    def show(self, value: object) -> str:
        if not isinstance(value, int):
            return str(value)
        if value > LONG_MAX:
            return "no limit"
        units = (("d", DAY_MS), ("h", HOUR_MS), ("min", MINUTE_MS), ("s", SECOND_MS))
        return next((f"{value // ms} {unit}" for unit, ms in units if value and value % ms == 0), f"{value} ms")


class Size(_Bounded):
    """An amount of bytes; a number without a unit is bytes."""

    kind = "size"

    def convert(self, value: object) -> int | None:
        number = _whole(value)
        if number is None and isinstance(value, str):
            try:
                number = parse_memory_size(value)
            except InvalidConfigError:
                return None
        return self._within(number)

    def allowed(self) -> str:
        words = "a whole number of bytes, or a number and a unit such as '64 kb', '32 mb' or '1 gb'"
        if self.minimum > 0:
            words += f", from {self.show(self.minimum)}"
        return words + (f" to {self.maximum} bytes" if self.maximum < LONG_MAX else "")

    def show(self, value: object) -> str:
        if not isinstance(value, int):
            return str(value)
        units = (("gb", GB), ("mb", MB), ("kb", KB))
        return next((f"{value // size} {unit}" for unit, size in units if value and value % size == 0), f"{value} b")


class Choice(OptionType[str]):
    """One of a few strings, in any case, with `-` for `_`; kept in the spelling of the list."""

    kind = "choice"

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def convert(self, value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            return None
        wanted = str(value).strip().lower()
        spelled = (wanted, wanted.replace("-", "_"))
        return next((choice for choice in self.choices if choice.lower() in spelled), None)

    def allowed(self) -> str:
        return f"one of {', '.join(repr(choice) for choice in self.choices)}"


class StoreType(Choice):
    """The form of a file with TLS keys or certificates. Java's forms are refused with the way to convert them."""

    def __init__(self) -> None:
        super().__init__("PEM")

    def allowed(self) -> str:
        return (
            "'PEM'. Convert a Java key store to PKCS12 (keytool -importkeystore -srckeystore keys.jks -destkeystore "
            "keys.p12 -deststoretype PKCS12), and PKCS12 to PEM (openssl pkcs12 -in keys.p12 -out keys.pem -nodes)"
        )


class Names(OptionType[tuple[str, ...]]):
    """Names separated by commas or semicolons; with `distinct`, at least one, and none twice."""

    kind = "list"

    def __init__(self, *, distinct: bool = False) -> None:
        self.distinct = distinct

    def convert(self, value: object) -> tuple[str, ...] | None:
        if not isinstance(value, str):
            return None
        parts = value.split(",") if self.distinct else re.split(r"[;,]", value)
        names = tuple(part.strip() for part in parts if part.strip())
        return None if self.distinct and (not names or len(set(names)) != len(names)) else names

    def allowed(self) -> str:
        return "names separated by commas" + (", none of them twice" if self.distinct else "")

    def show(self, value: object) -> str:
        return ",".join(value) if isinstance(value, tuple) else str(value)


class Pairs(OptionType[dict[str, str]]):
    """``key:value`` pairs separated by commas."""

    kind = "map"

    def convert(self, value: object) -> dict[str, str] | None:
        if not isinstance(value, str):
            return None
        pairs: dict[str, str] = {}
        for part in value.split(","):
            key, colon, item = part.partition(":")
            if part.strip() and (not colon or not key.strip()):
                return None
            if part.strip():
                pairs[key.strip()] = item.strip()
        return pairs

    def allowed(self) -> str:
        return "key:value pairs separated by commas"

    def show(self, value: object) -> str:
        return ",".join(f"{key}:{item}" for key, item in value.items()) if isinstance(value, dict) else str(value)


class Addresses(OptionType[str]):
    """``host:port``, or several of them separated by commas."""

    kind = "string"

    def convert(self, value: object) -> str | None:
        return value if isinstance(value, str) and split_addresses(value) else None

    def allowed(self) -> str:
        return "host:port, or several of them separated by commas"


def split_addresses(text: str) -> list[tuple[str, int]]:
    """Read ``"a:1, [::1]:2"`` as pairs of host and port; empty if the text cannot be read."""
    addresses = []
    for item in text.split(","):
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]]+)):([0-9]{1,5})", item.strip())
        if match is None or not 0 < int(match[3]) <= 65535:
            return []
        addresses.append((match[1] or match[2], int(match[3])))
    return addresses


# -- options and tables of options ----------------------------------------------------------------------------------

REDACTED = "***"

T = TypeVar("T")
O_co = TypeVar("O_co", bound="Option[Any]", covariant=True)


class Option(Generic[T]):
    """One option: a row of a table of options.

    Example:
        retries = Option("writer.retries", Whole(), 3, "How often a write is sent again.")
        retries.parse("5")
    """

    def __init__(
        self,
        key: str,
        type: OptionType[T],
        default: T,
        doc: str,
        *,
        aliases: tuple[str, ...] = (),
        secret: bool = False,
        dynamic: bool = False,
    ) -> None:
        self.key = key
        self.type = type
        self.default = default
        """The value that holds when the option is not set."""
        self.doc = doc
        self.aliases = aliases
        self.secret = secret
        """Whether the value must never be shown."""
        self.dynamic = dynamic
        """Whether the option can change while what it configures is in use."""

    def parse(self, value: object) -> T:
        """Turn text or a native value into the typed value; the error names the key, the value and what is allowed."""
        parsed = self.type.convert(value)
        if parsed is None:
            # A bad secret must not end up in a log.
            raise self.refusal(REDACTED if self.secret else f"{value!r:.100}")
        return parsed

    def refusal(self, given: str) -> FlussError:
        """Make the error about a value that is not accepted."""
        return ConfigError(f"{self.key}: got {given}, but it takes {self.type.allowed()}")

    @property
    def kind(self) -> str:
        """The name of the option's type."""
        return self.type.kind

    @property
    def choices(self) -> tuple[str, ...]:
        """The strings it takes, if there are only a few."""
        return self.type.choices if isinstance(self.type, Choice) else ()

    @property
    def default_text(self) -> str:
        """The default as a person would write it; empty where there is none."""
        return "" if self.default is None else self.type.show(self.default)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"


class OptionTable(Mapping[str, O_co]):
    """Options by key, in order.

    Args:
        subject: What errors call one of them, such as ``server option``.
        options: The rows.
        prefix: A prefix that keys may carry or not.
        ignore_case: Whether the case of keys counts.
        refused: Keys that others know, and why they are not options here.
    """

    def __init__(
        self,
        subject: str,
        options: Iterable[O_co],
        *,
        prefix: str = "",
        ignore_case: bool = False,
        refused: Mapping[str, str] | None = None,
    ) -> None:
        self.subject = subject
        self.refused = dict(refused or {})
        self._options = {option.key: option for option in options}
        self._prefix = prefix
        self._ignore_case = ignore_case
        self._spellings = {
            self._plain(key): option for option in self._options.values() for key in (option.key, *option.aliases)
        }

    def __getitem__(self, key: str) -> O_co:
        return self._options[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def _plain(self, key: str) -> str:
        return key.lower() if self._ignore_case else key

    def find(self, key: str) -> O_co | None:
        """Find an option by its key or an alias, with or without the prefix."""
        plain = self._plain(key)
        option = self._spellings.get(plain)
        if option is None and self._prefix and plain.startswith(self._prefix):
            option = self._spellings.get(plain.removeprefix(self._prefix))
        return option

    def require(self, key: str) -> O_co:
        """Find an option; a ConfigError says what is meant, perhaps, or why the key is not accepted."""
        option = self.find(key)
        if option is None:
            raise self.unknown(key)
        return option

    def suggest(self, key: str) -> str | None:
        """Name the known key that is nearest to an unknown one, if one is near enough to be meant."""
        import difflib  # only where something is misspelt

        spelled = {self._plain(name): name for option in self.values() for name in (option.key, *option.aliases)}
        plain = self._plain(key)
        for candidate in (plain, plain.removeprefix(self._prefix)):
            found = difflib.get_close_matches(candidate, spelled, 3, 0.75)
            if found:
                # A key and its alias are often equally near: the key is the one to learn.
                nearest = self._spellings[found[0]].key
                return nearest if self._plain(nearest) in found else spelled[found[0]]
        return None

    def unknown(self, key: str) -> ConfigError:
        """Make the error about a key that is not in the table."""
        reason = self.refused.get(key) or self.refused.get(key.removeprefix(self._prefix))
        if reason is not None:
            return ConfigError(f"{self.subject} {key!r:.100} cannot be used: {reason}. Remove it.")
        near = self.suggest(key)
        hint = f"did you mean {near!r}?" if near else "docs/configuration.md lists the options"
        return ConfigError(f"unknown {self.subject} {key!r:.100}; {hint}")


def read_yaml(path: str | os.PathLike[str], what: str) -> Any:
    """Read a YAML file; errors name it as `what`, with the line and column of a mistake."""
    import yaml  # most programs have no such file

    try:
        with open(path, encoding="utf-8") as file:
            return yaml.safe_load(file)
    except OSError as error:
        raise ConfigError(f"cannot read {what} '{path}': {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{what} '{path}' is not a text in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ConfigError(f"{what} '{path}'{place} is not YAML: {reason}") from None
