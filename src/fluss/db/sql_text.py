# SPDX-License-Identifier: Apache-2.0
"""The text of SQL statements: tokens, names of tables, clauses.

DuckDB parses every statement before it is looked at here, so what follows its grammar is taken for granted.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import NamedTuple

# What is read otherwise than DuckDB reads it would let a text or a comment pass for a statement. So these are exactly
# its spaces. All else but the signs of ASCII may be part of a name, control characters too, but those not of a tag.
_SPACES = r" \t\n\v\f\r\xa0\u2000-\u200b\u202f\u205f\u2060\u3000\ufeff"
_LETTER = rf"[^{_SPACES}0-9!-/:-@\[-^`{{-~]"
_TAG_LETTER = rf"[^{_SPACES}\x00-@\[-^`{{-\x7f]"
_TOKEN = re.compile(
    rf"""[{_SPACES}]+ | --[^\r\n]* | (?P<comment>/\*)
    | (?P<text>[eE]'(?:[^'\\]|\\.|'')*' | [xX]?'(?:[^']|'')*'
      | \$(?P<tag>(?:{_TAG_LETTER}(?:{_TAG_LETTER}|[0-9])*)?)\$.*?\$(?P=tag)\$)
    | (?P<quoted>"(?:[^"]|"")*" | `(?:[^`]|``)*`)
    | (?P<word>{_LETTER}(?:{_LETTER}|[0-9$])*)
    | (?P<other>[0-9]+ | .)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_MARK = re.compile(r"/\*|\*/")
Chain = tuple[str, ...]
"""A name and the names before its dots: ``("shop", "orders")``."""


class Token(NamedTuple):
    """A piece of a statement that is neither space nor comment."""

    kind: str
    """``word``, ``quoted`` (a name in double quotes or, since DuckDB 2.0, in backquotes), ``text`` or ``other``."""
    text: str
    at: int

    @property
    def word(self) -> str:
        """In lower case if it is a word, else empty."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def name(self) -> str | None:
        """The name it stands for, if it can be one."""
        if self.kind == "quoted":
            return self.text[1:-1].replace(self.text[0] * 2, self.text[0])
        return self.text if self.kind == "word" else None


def tokens_of(query: str) -> list[Token]:
    """The pieces of a statement."""
    found, at = [], 0
    while (match := _TOKEN.match(query, at)) is not None:
        kind, at = match.lastgroup, match.end()
        if kind == "comment":
            at = _end_of_comment(query, at)
        elif kind is not None:
            found.append(Token("text" if kind == "tag" else kind, match.group(), match.start()))
    return found


def _end_of_comment(query: str, at: int) -> int:
    """Where a comment ends that began before a position. Comments may hold others."""
    depth = 1
    for mark in _COMMENT_MARK.finditer(query, at):
        depth += 1 if mark.group() == "/*" else -1
        if not depth:
            return mark.end()
    return len(query)


def statements_of(text: str) -> list[str]:
    """The statements of a text, without empty ones."""
    found, start = [], 0
    for token in tokens_of(text):
        if token.text == ";":
            found.append(text[start : token.at])
            start = token.at + 1
    found.append(text[start:])
    return [one.strip() for one in found if tokens_of(one)]


def chains_of(tokens: Sequence[Token]) -> list[Chain]:
    """Everything in a statement that could be the name of a table."""
    found: dict[Chain, None] = {}
    at = 0
    while at < len(tokens):
        chain, at = chain_at(tokens, at)
        if chain:
            found[chain] = None
        else:
            at += 1
    return list(found)


def chain_at(tokens: Sequence[Token], at: int) -> tuple[Chain, int]:
    """The dotted name that begins at a token, and where it ends; empty if there is none."""
    names: list[str] = []
    while at < len(tokens) and (name := tokens[at].name) is not None:
        names.append(name)
        at += 1
        if at >= len(tokens) or tokens[at].text != ".":
            break
        at += 1
    return tuple(names), at


def find_word(tokens: Sequence[Token], words: Container[str], start: int = 0) -> int:
    """The position of the first of these words outside of brackets; that of the end if there is none."""
    depth = 0
    for at in range(start, len(tokens)):
        token = tokens[at]
        if not depth and token.word in words and not (token.word == "from" and tokens[at - 1].word == "distinct"):
            return at
        depth += (token.text in "([{") - (token.text in ")]}")
    return len(tokens)


def closing(tokens: Sequence[Token], at: int) -> int:
    """The position of the bracket that closes the one at a position."""
    depth = 0
    for position in range(at, len(tokens)):
        depth += (tokens[position].text in "([{") - (tokens[position].text in ")]}")
        if not depth:
            return position
    return len(tokens)


def split_commas(tokens: Sequence[Token]) -> list[Sequence[Token]]:
    """The parts between commas outside of brackets."""
    parts, start, depth = [], 0, 0
    for at, token in enumerate(tokens):
        depth += (token.text in "([{") - (token.text in ")]}")
        if token.text == "," and not depth:
            parts.append(tokens[start:at])
            start = at + 1
    parts.append(tokens[start:])
    return [part for part in parts if part]


def text_of(query: str, tokens: Sequence[Token]) -> str:
    """What stands in a statement from the first to the last of some tokens of it."""
    return query[tokens[0].at : tokens[-1].at + len(tokens[-1].text)] if tokens else ""


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'
