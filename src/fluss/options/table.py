# SPDX-License-Identifier: Apache-2.0
"""Options and tables of options: keys, aliases, unknown keys and the nearest known one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from fluss.errors import ConfigError, FlussError
from fluss.options.types import Choice, OptionType

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
