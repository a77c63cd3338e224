# SPDX-License-Identifier: Apache-2.0
"""Filters as text, as after WHERE in SQL: `parse_where` reads them into predicates.

Grammar, from the loosest binding to the tightest (words in any case)::

    condition   = term { OR term }
    term        = factor { AND factor }
    factor      = NOT factor | "(" condition ")" | test
    test        = column [ comparison literal
                         | [NOT] IN "(" literal { "," literal } ")"
                         | [NOT] BETWEEN literal AND literal
                         | [NOT] LIKE literal [ ESCAPE text ]
                         | IS [NOT] NULL | IS [NOT] TRUE | IS [NOT] FALSE
                         | IS [NOT] DISTINCT FROM literal ]
                | literal [ comparison ( column | literal ) ]
    comparison  = "=" | "==" | "<>" | "!=" | "<" | "<=" | ">" | ">="
    column      = word | `"` any text `"` | "`" any text "`"
    literal     = number | text | TRUE | FALSE | NULL | X text | (DATE | TIME | TIMESTAMP | TIMESTAMPTZ ...) text
                | "?" | "$" word

A literal is read as a value of the column it is compared with, so ``day = '2024-01-15'`` compares dates. ``?`` and
``$name`` stand for parameters: Python values, or texts that are read as literals are. What else SQL has (functions,
arithmetic, comparisons of columns) raises `UnreadableConditionError`: `fluss.db.conditions` lets DuckDB evaluate it.
"""

from __future__ import annotations

import decimal
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fluss.errors import FlussError, InvalidArgumentError
from fluss.metadata import types as t
from fluss.metadata.literals import has_zone, number_of, value_of
from fluss.metadata.predicate import EVERYTHING, LITERALS_MAX, NOTHING, CompoundFunction, Predicate, col, joined
from fluss.metadata.schema import Column, Schema

TEXT_LENGTH_MAX = 1_000_000
NESTING_MAX = 100
Params = Sequence[Any] | Mapping[str, Any]
"""Values for ``?`` (a list) or ``$name`` (a dict)."""

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<hex>[xX]'(?:[^']|'')*')
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)
    | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?!\w))
    | (?P<word>[^\W\d][\w$]*)
    | (?P<parameter>\?|\$\w+)
    | (?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,|\+|-)
    | (?P<beyond>\|\||//|\*\*|::|[*/%^&|~:.\[\]{}])
    | (?P<end>$)
    )""",
    re.VERBOSE,
)
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "==": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Of two values it gives a truth, of a `ColumnRef` and a value a predicate."""
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_RESERVED = frozenset({"and", "or", "not", "in", "is", "null", "true", "false", "between", "like", "escape"})
_TYPED = {
    "date": "date",
    "time": "time",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp",
    "timestamp_ltz": "timestamp with a zone",
    "timestamptz": "timestamp with a zone",
}


class _Token(NamedTuple):
    kind: str
    text: str
    at: int
    """The position of its first character, from 0."""


@dataclass(frozen=True)
class _Literal:
    """A literal whose type is that of the column it will be compared with."""

    kind: str
    """number, text, hex, boolean, null, value (any other Python value), or one of the values of `_TYPED`."""
    value: Any
    token: _Token


class UnreadableConditionError(InvalidArgumentError):
    """The text is no condition of this grammar. It may still be one of SQL."""


class UnknownColumnError(UnreadableConditionError):
    """The text names a column that the table does not have."""


def parse_where(text: str, schema: Schema, params: Params | None = None, *, zone_required: bool = False) -> Predicate:
    """Read a condition as it stands after WHERE in SQL.

    Args:
        text: The condition, for instance ``"price > 10 and (item like 'te%' or item is null)"``.
        schema: The columns that the condition may name, and their types.
        params: Values for ``?`` (a list) or ``$name`` (a dict).
        zone_required: Refuse times without a zone that are compared with TIMESTAMP_LTZ, instead of taking them as UTC.

    Returns:
        A predicate whose columns and literals fit the schema.

    Raises:
        UnreadableConditionError: The text is not a condition, or names an unknown column. The message names the
            position in the text.
        InvalidArgumentError: A column is compared with a literal of another type, or the parameters do not fit.

    Example:
        wanted = parse_where("id between 3 and 9 and name <> 'x'", schema)
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f'a condition is text such as "price > 10", not {text!r:.80}')
    if len(text) > TEXT_LENGTH_MAX:
        raise InvalidArgumentError(f"the condition has {len(text)} characters, {TEXT_LENGTH_MAX} are allowed")
    return _Parser(text, schema, params, zone_required).parse()


class _Parser:
    def __init__(self, text: str, schema: Schema, params: Params | None, zone_required: bool) -> None:
        self._text = text
        self._schema = schema
        self._params = check_params("where", params)
        self._used: set[str] = set()
        self._zone_required = zone_required
        self._beyond = False
        self._tokens = self._tokenize(text)
        self._beyond = any(token.kind == "beyond" for token in self._tokens)
        self._next = 0
        self._depth = 0
        self._folded: dict[str, list[str]] = {}
        for name in schema.column_names:
            self._folded.setdefault(name.casefold(), []).append(name)

    # -- tokens ---------------------------------------------------------------------------------------------------

    def _tokenize(self, text: str) -> list[_Token]:
        tokens = []
        at = 0
        while True:
            found = _TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                raise self._unreadable_error(self._unreadable(text[at:]), at)
            tokens.append(_Token(found.lastgroup, found.group(found.lastgroup), found.start(found.lastgroup)))
            if found.lastgroup == "end":
                return tokens
            at = found.end()

    @staticmethod
    def _unreadable(rest: str) -> str:
        if rest[0] == "'":
            return "the text has no closing '"
        if rest[0] in '"`':
            return f"the name has no closing {rest[0]}"
        return f"{rest[:20]!r} is not understood"

    def _error(self, what: str, at: int) -> InvalidArgumentError:
        shown = self._text if len(self._text) <= 200 else f"…{self._text[max(0, at - 80) : at + 80]}…"
        # Beside signs that are not in the grammar, a literal may mean something else: 'nan'::double is a number.
        error = UnreadableConditionError if self._beyond else InvalidArgumentError
        return error(f"{what}, at position {at + 1} of the condition {shown!r}")

    def _unreadable_error(self, what: str, at: int) -> UnreadableConditionError:
        return UnreadableConditionError(self._error(what, at).message)

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _advance(self) -> _Token:
        token = self._token
        self._next += token.kind != "end"
        return token

    def _peek_word(self) -> str | None:
        return self._token.text.lower() if self._token.kind == "word" else None

    def _take_word(self, *words: str) -> str | None:
        word = self._peek_word()
        if word not in words:
            return None
        self._next += 1
        return word

    def _take_sign(self, *signs: str) -> str | None:
        token = self._token
        if token.kind != "sign" or token.text not in signs:
            return None
        self._next += 1
        return token.text

    def _expect(self, what: str, found: object) -> None:
        if not found:
            raise self._expected(what)

    def _expected(self, what: str) -> UnreadableConditionError:
        token = self._token
        found = "the end" if token.kind == "end" else f"{token.text!r:.60}"
        return self._unreadable_error(f"expected {what}, found {found}", token.at)

    # -- conditions -----------------------------------------------------------------------------------------------

    def parse(self) -> Predicate:
        if self._token.kind == "end":
            raise self._error("the condition is empty: write a comparison such as price > 10", 0)
        found = self._condition()
        self._expect("AND, OR or the end", self._token.kind == "end")
        unused = [name for name in self._params if name not in self._used]
        if unused:
            raise self._error(f"there is no ${unused[0]} for the parameter {self._params[unused[0]]!r:.60}", 0)
        return found

    def _condition(self) -> Predicate:
        found = [self._term()]
        while self._take_word("or"):
            found.append(self._term())
        return joined(CompoundFunction.OR, found)

    def _term(self) -> Predicate:
        found = [self._factor()]
        while self._take_word("and"):
            found.append(self._factor())
        return joined(CompoundFunction.AND, found)

    def _factor(self) -> Predicate:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise self._error(f"the condition is nested deeper than {NESTING_MAX} levels", self._token.at)
        try:
            if self._take_word("not"):
                return ~self._factor()
            if self._take_sign("("):
                found = self._condition()
                self._expect("')'", self._take_sign(")"))
                return found
            return self._test()
        finally:
            self._depth -= 1

    def _test(self) -> Predicate:
        start = self._token
        if not self._at_literal():
            return self._column_test(self._column(), start)
        literal = self._literal()
        token = self._token
        sign = self._take_sign(*_COMPARISONS)
        if sign is None:
            if literal.kind == "boolean":
                return EVERYTHING if literal.value else NOTHING
            raise self._expected("a comparison after the literal")
        if not self._at_literal():
            column = self._column()
            return self._compare(column, _MIRRORED.get(sign, sign), literal)
        return self._constant(literal, sign, self._literal(), token)

    def _constant(self, left: _Literal, sign: str, right: _Literal, token: _Token) -> Predicate:
        """Compare two literals, as ``1 = 1`` does."""
        if "null" in (left.kind, right.kind):
            raise self._error("a comparison with NULL is never true: use IS NULL", token.at)
        if left.kind != right.kind:
            raise self._error(f"a {left.kind} is compared with a {right.kind}", token.at)
        return EVERYTHING if _COMPARISONS[sign](left.value, right.value) else NOTHING

    def _column_test(self, column: Column, start: _Token) -> Predicate:
        ref = col(column.name)
        if sign := self._take_sign(*_COMPARISONS):
            return self._compare(column, sign, self._literal())
        if self._take_word("is"):
            return self._is(column, start)
        negated = bool(self._take_word("not"))
        word = self._take_word("in", "between", "like")
        if word == "in":
            found = self._checked(ref.is_in(self._list(column)), start)
        elif word == "between":
            low = self._value(column, self._literal())
            self._expect("AND between the two limits of BETWEEN", self._take_word("and"))
            found = self._checked(ref.between(low, self._value(column, self._literal())), start)
        elif word == "like":
            found = self._like(column)
        elif negated:
            raise self._expected("IN, BETWEEN or LIKE after NOT")
        elif isinstance(column.data_type, t.BooleanType):
            return ref.equal(True)
        else:
            raise self._expected(f"a comparison of column {column.name!r}")
        return ~found if negated else found

    def _compare(self, column: Column, sign: str, literal: _Literal) -> Predicate:
        value = self._value(column, literal)
        return self._checked(_COMPARISONS[sign](col(column.name), value), literal.token)

    def _is(self, column: Column, start: _Token) -> Predicate:
        """A test that is true or false for null too, so that its negation holds where it does not."""
        ref = col(column.name)
        negated = bool(self._take_word("not"))
        word = self._take_word("null", "true", "false", "distinct")
        if word == "null":
            return ref.is_not_null() if negated else ref.is_null()
        if word in ("true", "false"):
            wanted = word == "true"
            found = self._checked(ref.equal(wanted), start)
            return ref.equal(not wanted) | ref.is_null() if negated else found & ref.is_not_null()
        if word == "distinct":
            self._expect("FROM after DISTINCT", self._take_word("from"))
            literal = self._literal()
            value = self._value(column, literal)
            if value is None:
                return ref.is_null() if negated else ref.is_not_null()
            same = self._checked(ref.equal(value), literal.token)
            return same & ref.is_not_null() if negated else ref.not_equal(value) | ref.is_null()
        raise self._expected("NULL, TRUE, FALSE or DISTINCT FROM after IS")

    def _list(self, column: Column) -> list[Any]:
        self._expect("'(' after IN", self._take_sign("("))
        values = [self._value(column, self._literal())]
        while self._take_sign(","):
            values.append(self._value(column, self._literal()))
            if len(values) > LITERALS_MAX:
                raise self._error(f"IN takes at most {LITERALS_MAX} values", self._token.at)
        self._expect("',' or ')' in the list of IN", self._take_sign(")"))
        return values

    def _like(self, column: Column) -> Predicate:
        literal = self._literal()
        escape = None
        if self._take_word("escape"):
            given = self._literal()
            escape = given.value
            if given.kind != "text" or len(escape) != 1:
                raise self._error("ESCAPE takes one character, such as '!'", given.token.at)
        if literal.kind not in ("text", "null"):
            raise self._error(f"LIKE takes a text, not {literal.token.text!r:.60}", literal.token.at)
        try:
            predicate = col(column.name).like(literal.value, escape)
        except InvalidArgumentError as error:
            raise self._error(error.message, literal.token.at) from None
        return self._checked(predicate, literal.token)

    def _checked(self, predicate: Predicate, token: _Token) -> Predicate:
        """Fail with the position if a literal does not fit its column."""
        try:
            predicate.resolve(self._schema)
        except FlussError as error:
            raise self._error(error.message, token.at) from None
        return predicate

    # -- columns --------------------------------------------------------------------------------------------------

    def _column(self) -> Column:
        token = self._advance()
        if token.kind == "quoted":
            quote = token.text[0]
            name = token.text[1:-1].replace(quote * 2, quote)
        elif token.kind == "word" and token.text.lower() not in _RESERVED:
            name = token.text
        else:
            self._next -= token.kind != "end"
            raise self._expected("a column")
        if self._token.kind == "sign" and self._token.text == "(":
            raise self._unreadable_error(f"functions such as {name}(…) are not supported", token.at)
        if name in self._schema.column_names:
            return self._schema.column(name)
        alike = self._folded.get(name.casefold(), [])
        if len(alike) == 1:
            return self._schema.column(alike[0])
        if alike:
            raise self._error(f"column {name!r} is ambiguous: write one of {', '.join(alike)} exactly", token.at)
        what = f"unknown column {name!r:.80}; {self._hint(name, token)}"
        raise UnknownColumnError(self._error(what, token.at).message)

    def _hint(self, name: str, token: _Token) -> str:
        import difflib  # only where something is wrong: it takes a while to load

        close = difflib.get_close_matches(name.casefold(), list(self._folded), 1, 0.6)
        if close:
            return f"did you mean {self._folded[close[0]][0]!r}?"
        if token.kind == "quoted" and token.text[0] == '"':
            return "texts stand in single quotes"
        shown = self._schema.column_names[:20]
        more = " …" if len(self._schema.column_names) > len(shown) else ""
        return f"the columns are {', '.join(shown)}{more}"

    # -- literals -------------------------------------------------------------------------------------------------

    def _at_literal(self) -> bool:
        token, word = self._token, self._peek_word()
        if token.kind in ("number", "text", "hex", "parameter") or word in ("true", "false", "null"):
            return True
        if token.kind == "sign" and token.text in "+-":
            return True
        following = self._tokens[min(self._next + 1, len(self._tokens) - 1)]
        return word in _TYPED and following.kind == "text"

    def _literal(self) -> _Literal:
        if not self._at_literal():
            if self._token.kind == "quoted" or (self._token.kind == "word" and self._peek_word() not in _RESERVED):
                raise self._expected("a value (texts stand in single quotes, and columns are compared with values)")
            raise self._expected("a value")
        token = self._advance()
        if token.kind == "sign":
            number = self._advance()
            if number.kind != "number":
                self._next -= number.kind != "end"
                raise self._expected(f"a number after {token.text!r}")
            return _Literal("number", number_of(token.text + number.text), token)
        if token.kind == "number":
            return _Literal("number", number_of(token.text), token)
        if token.kind == "hex":
            try:
                return _Literal("hex", bytes.fromhex(token.text[2:-1]), token)
            except ValueError:
                raise self._error(f"{token.text!r:.60} is not an even number of hexadecimal digits", token.at) from None
        if token.kind == "text":
            return _Literal("text", _unquoted(token), token)
        if token.kind == "parameter":
            return self._parameter(token)
        word = token.text.lower()
        if word == "null":
            return _Literal("null", None, token)
        if word in ("true", "false"):
            return _Literal("boolean", word == "true", token)
        return _Literal(_TYPED[word], _unquoted(self._advance()), token)

    def _parameter(self, token: _Token) -> _Literal:
        name = token.text[1:] or str(len(self._used) + 1)
        if name not in self._params:
            raise self._error(f"there is no value for the parameter {token.text}: give it with params=", token.at)
        self._used.add(name)
        value = self._params[name]
        kinds = {type(None): "null", bool: "boolean", int: "number", decimal.Decimal: "number", str: "text"}
        return _Literal(kinds.get(type(value), "value"), value, token)

    def _value(self, column: Column, literal: _Literal) -> Any:
        """The literal as a Python value of the column's type."""
        try:
            value = value_of(column.data_type, literal.kind, literal.value)
            if self._zone_required and isinstance(column.data_type, t.TimestampLtzType) and not has_zone(literal.value):
                raise ValueError("write the zone too, such as '2024-01-15 10:30:00+00:00'")
            return value
        except ValueError as error:
            reason = f": {error}" if str(error) else ""
            shown = literal.value if literal.kind == "text" else literal.token.text
            raise self._error(
                f"{shown!r:.60} is not a value of column {column.name!r} of type {column.data_type}{reason}",
                literal.token.at,
            ) from None


def check_params(call: str, params: Params | None) -> dict[str, Any]:
    """Parameters by name; those of a list are called 1, 2, …

    Raises:
        InvalidArgumentError: They are neither a list nor a dict with names.
    """
    if isinstance(params, Mapping) and all(isinstance(name, str) for name in params):
        return dict(params)
    if params is None or (isinstance(params, Sequence) and not isinstance(params, (str, bytes))):
        return {str(number): value for number, value in enumerate(params or (), 1)}
    raise InvalidArgumentError(
        f"{call}: params= takes a list of values for ? or a dict of values for $name, not {params!r:.80}"
    )


def _unquoted(token: _Token) -> str:
    return token.text[1:-1].replace("''", "'")
