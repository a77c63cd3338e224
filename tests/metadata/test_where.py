# SPDX-License-Identifier: Apache-2.0
"""Conditions as text keep the rows that SQL keeps: compared with a slow model of SQL's logic, and with DuckDB."""

from __future__ import annotations

import datetime
import functools
import math
import operator
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fluss.errors import InvalidArgumentError
from fluss.metadata import Schema, col
from fluss.metadata.predicate import EVERYTHING, LITERALS_MAX, NOTHING
from fluss.metadata.where import NESTING_MAX, TEXT_LENGTH_MAX, parse_where

UTC = datetime.timezone.utc
SCHEMA = Schema(
    pa.schema(
        [
            ("id", pa.int64()),
            ("Name", pa.string()),
            ("price", pa.decimal128(10, 2)),
            ("weight", pa.float64()),
            ("day", pa.date32()),
            ("at", pa.timestamp("ns")),
            ("seen", pa.timestamp("us", tz="UTC")),
            ("hour", pa.time32("ms")),
            ("ok", pa.bool_()),
            ("tags", pa.list_(pa.string())),
            ("raw", pa.binary()),
            ("date", pa.int32()),
            ("in", pa.int32()),
            ("a", pa.int32()),
            ("A", pa.int32()),
            ("größe", pa.int32()),
            ('odd "name`', pa.int32()),
        ]
    )
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id = 5", col("id") == 5),
        ("ID == 5", col("id") == 5),
        ("5 < id", col("id") > 5),
        ("5 >= id", col("id") <= 5),
        ("id <> -5 AND id != +5", (col("id") != -5) & (col("id") != 5)),
        ("id = 1 or id = 2 and id = 3", (col("id") == 1) | ((col("id") == 2) & (col("id") == 3))),
        ("(id = 1 or id = 2) and id = 3", ((col("id") == 1) | (col("id") == 2)) & (col("id") == 3)),
        ("not id = 1 and id = 2", ~(col("id") == 1) & (col("id") == 2)),
        ("not (id = 1 and id = 2)", ~((col("id") == 1) & (col("id") == 2))),
        ("not not id = 1", col("id") == 1),
        ("id in (1, 2, null)", col("id").is_in([1, 2, None])),
        ("id not in (1)", ~col("id").is_in([1])),
        ("id between 1 and 2 and ok", col("id").between(1, 2) & (col("ok") == True)),  # noqa: E712
        ("price not between 1 and 2.5", ~col("price").between(1, Decimal("2.5"))),
        ("name like 'a_%'", col("Name").like("a_%")),
        ("name not like '50!%' escape '!'", ~col("Name").like("50!%", "!")),
        ("name is null or tags is not null", col("Name").is_null() | col("tags").is_not_null()),
        ("ok", col("ok") == True),  # noqa: E712
        ("not ok", ~(col("ok") == True)),  # noqa: E712
        ("ok is true", (col("ok") == True) & col("ok").is_not_null()),  # noqa: E712
        ("ok is not true", (col("ok") == False) | col("ok").is_null()),  # noqa: E712
        ("ok is false", (col("ok") == False) & col("ok").is_not_null()),  # noqa: E712
        ("ok = 'TRUE'", col("ok") == True),  # noqa: E712
        ("id is distinct from 5", (col("id") != 5) | col("id").is_null()),
        ("id is not distinct from 5", (col("id") == 5) & col("id").is_not_null()),
        ("id is not distinct from null", col("id").is_null()),
        ("id is distinct from null", col("id").is_not_null()),
        ("true", EVERYTHING),
        ("false", NOTHING),
        ("1 = 1", EVERYTHING),
        ("'a' > 'b'", NOTHING),
        ("1 = 1 and id = 2", EVERYTHING & (col("id") == 2)),
        ("id = 1e3", col("id") == Decimal("1E3")),
        ("id = 1.5", col("id") == Decimal("1.5")),
        ("id = '12'", col("id") == 12),
        ("price = '1.50'", col("price") == Decimal("1.50")),
        ("price = .5", col("price") == Decimal("0.5")),
        ("weight > '-Infinity'", col("weight") > -math.inf),
        ("name = 'it''s'", col("Name") == "it's"),
        ("name = ''", col("Name") == ""),
        ("name = '--'", col("Name") == "--"),
        ("raw = x'00ff'", col("raw") == b"\x00\xff"),
        ("raw = '00FF'", col("raw") == b"\x00\xff"),
        ("day = '2024-01-15'", col("day") == datetime.date(2024, 1, 15)),
        ("day = date '2024-1-5'", col("day") == datetime.date(2024, 1, 5)),
        ("date = 5", col("date") == 5),
        ("date in (5)", col("date").is_in([5])),
        ("hour < '10:30'", col("hour") < datetime.time(10, 30)),
        ("hour < time '10:30:01.5'", col("hour") < datetime.time(10, 30, 1, 500_000)),
        ("at > '2024-01-15'", col("at") > datetime.datetime(2024, 1, 15)),
        ("at > date '2024-01-15'", col("at") > datetime.datetime(2024, 1, 15)),
        ("at = timestamp '2024-01-15 10:30'", col("at") == datetime.datetime(2024, 1, 15, 10, 30)),
        ("at = '2024-01-15T10:30:00.123456'", col("at") == datetime.datetime(2024, 1, 15, 10, 30, 0, 123456)),
        ("at = '2024-01-15 10:30:00.123456789'", col("at") == np.datetime64("2024-01-15T10:30:00.123456789")),
        ("seen = '2024-01-15 10:30:00'", col("seen") == datetime.datetime(2024, 1, 15, 10, 30, tzinfo=UTC)),
        ("seen = '2024-01-15 10:30:00Z'", col("seen") == datetime.datetime(2024, 1, 15, 10, 30, tzinfo=UTC)),
        ("seen = '2024-01-15T10:30:00 +02:00'", col("seen") == datetime.datetime(2024, 1, 15, 8, 30, tzinfo=UTC)),
        ("seen = timestamptz '2024-01-15 10:30-0530'", col("seen") == datetime.datetime(2024, 1, 15, 16, tzinfo=UTC)),
        ('"id" = 1', col("id") == 1),
        ("`ID` = 1", col("id") == 1),
        ('"in" = 1', col("in") == 1),
        ("a = 1", col("a") == 1),
        ("A = 1", col("A") == 1),
        ("GRÖSSE = 1", col("größe") == 1),
        ('"odd ""name`" = 1', col('odd "name`') == 1),
        ('`odd "name``` = 1', col('odd "name`') == 1),
        ("  id\n=\t1  ", col("id") == 1),
    ],
)
def test_what_a_text_means(text: str, expected: Any) -> None:
    assert parse_where(text, SCHEMA) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("prise > 5", "unknown column 'prise'; did you mean 'price'?, at position 1 "),
        ("id = 1 and nmae = 'x'", "did you mean 'Name'?, at position 12 "),
        ("zzz = 1", "the columns are id, Name, price"),
        ("at <= '9999-12-31 23:59:59.999999999'", "at most 6 digits of a second, outside the years 1678 to 2261"),
        ('name = 5 or "hello world" = name', "a string, not 5, at position 8 "),
        ('"hello world" = 5', "texts stand in single quotes"),
        ("Größ = 1", "did you mean 'größe'?"),
        ("", "the condition is empty"),
        ("   ", "the condition is empty"),
        ("id", "expected a comparison of column 'id', found the end, at position 3 "),
        ("id >", "expected a value, found the end, at position 5 "),
        ("id = 1 id = 2", "expected AND, OR or the end, found 'id', at position 8 "),
        ("id = 1)", "found ')', at position 7 "),
        ("(id = 1", "expected ')', found the end, at position 8 "),
        ("id in 5", "expected '(' after IN, found '5', at position 7 "),
        ("id in ()", "expected a value, found ')'"),
        ("id in (1 2)", "expected ',' or ')'"),
        ("id between 1 or 2", "expected AND between the two limits"),
        ("id not 5", "expected IN, BETWEEN or LIKE after NOT"),
        ("id is 5", "expected NULL, TRUE, FALSE or DISTINCT FROM"),
        ("id is distinct 5", "expected FROM"),
        ("id is true", "a number, not True"),
        ("id ~ 1", "expected a comparison of column 'id', found '~', at position 4 "),
        ("id = 5x", "'5x' is not understood"),
        ("name = 'abc", "the text has no closing ', at position 8 "),
        ('"id = 5', 'the name has no closing "'),
        ("id = 'x'", "'x' is not a value of column 'id' of type bigint, at position 6 "),
        ("price = 'x'", "not a value of column 'price'"),
        ("weight = 'x'", "not a value of column 'weight'"),
        ("ok = 'x'", "write true or false"),
        ("ok = 1", "true or false"),
        ("name = 1", "a string"),
        ("name like 5", "LIKE takes a text, not '5'"),
        ("id like '5'", "string column"),
        ("name like 'a!' escape '!'", "ends with its escape character, at position 11 "),
        ("name like 'a' escape '!!'", "ESCAPE takes one character"),
        ("raw = x'0'", "hexadecimal"),
        ("raw = 'zz'", "not a value of column 'raw'"),
        ("tags = 'a'", "IS NULL and IS NOT NULL only"),
        ("tags = 5", "is_null and is_not_null only"),
        ("lower(name) = 'x'", "functions such as lower(…) are not supported, at position 1 "),
        ("id = name", "columns are compared with values"),
        ("id = null + 1", "'+'"),
        ("id = -", "expected a number after '-'"),
        ("id = - 'x'", "expected a number after '-'"),
        ("1", "expected a comparison after the literal"),
        ("null", "expected a comparison after the literal"),
        ("1 = 'a'", "a number is compared with a text"),
        ("1 = null", "use IS NULL"),
        ("and", "expected a column, found 'and'"),
        ("a.b = 1", "expected a comparison of column 'a', found '.'"),
        ("GRÖSSE = 'x'", "not a value of column 'größe'"),
        ('"ä" = 1', "unknown column 'ä'"),
        ("day = '2024-13-01'", "month must be in 1..12"),
        ("day = '2024-01-15 10:00'", "write a date"),
        ("day = 'soon'", "write it as '2024-01-15'"),
        ("hour = '25:00'", "hour must be in 0..23"),
        ("hour = 'noon'", "write a time"),
        ("at = '2024-01-15 10:30Z'", "the column has no zone"),
        ("at = timestamptz '2024-01-15 10:30'", "the column has no zone"),
        ("seen = '0001-01-01 00:00+14:00'", "outside the years 1 to 9999"),
        ("seen = 5", "datetime"),
        ("( " * (NESTING_MAX + 1) + "id = 1", "nested deeper"),
        ("not " * (NESTING_MAX + 1) + "ok", "nested deeper"),
        (f"id in ({'1,' * LITERALS_MAX}1)", "at most 10000 values"),
        ("x" * (TEXT_LENGTH_MAX + 1), "are allowed"),
        (5, "not 5"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_condition(text: Any, problem: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_where(text, SCHEMA)
    assert problem in str(caught.value)


def test_names_that_differ_in_case_only_must_be_written_exactly() -> None:
    schema = Schema(pa.schema([("Ab", pa.int32()), ("aB", pa.int32())]))
    assert parse_where("aB = 1", schema) == (col("aB") == 1)
    with pytest.raises(InvalidArgumentError, match="'ab' is ambiguous: write one of Ab, aB exactly"):
        parse_where("ab = 1", schema)


def test_numbers_of_any_size() -> None:
    table = pa.table({"id": pa.array([1, None], pa.int64()), "weight": [1.0, math.inf]})
    schema = Schema(table.schema)
    for text, rows in {
        f"id < {'9' * 5000}": 1,
        f"id > -{'9' * 5000}": 1,
        "id > 1e-99999999999999999999": 1,
        "id < 1e99999999999999999999": 1,
        "id < -1e99999999999999999999": 0,
        "weight < 1e400": 1,
        "weight >= 1e400": 1,
    }.items():
        assert table.filter(parse_where(text, schema).to_arrow_expression(schema)).num_rows == rows, text


def test_long_conditions_are_read_in_time() -> None:
    numbers = ", ".join(str(number) for number in range(LITERALS_MAX))
    text = f"id in ({numbers}) or " + " or ".join(f"id = {number}" for number in range(5_000))
    assert len(list(parse_where(text, SCHEMA).leaves())) == 5_001


# -- against a model and DuckDB ----------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A column: its Arrow type, the values it can hold, and literals as `(our text, DuckDB's text, value)`."""

    arrow: pa.DataType
    values: st.SearchStrategy[Any]
    literals: st.SearchStrategy[tuple[str, str, Any]]


def _exact(number: Any) -> Any:
    """A number as the model compares it; NaN is greater than every other."""
    if isinstance(number, float) and math.isnan(number):
        return (1, 0)
    return (0, number if isinstance(number, float) and math.isinf(number) else Fraction(number))


def _same(text: str, value: Any) -> tuple[str, str, Any]:
    return text, text, value


whole = st.integers(-3, 3) | st.sampled_from([2**31, -(2**40), 10**20])
numbers = (whole | st.decimals(-3, 3, places=1)).map(lambda n: _same(str(n), n))
floats = st.sampled_from([0.0, -0.0, 1.0, -1.5, 2.5, 0.25, math.nan, math.inf, -math.inf])
float_literals = floats.map(lambda x: (f"'{x}'", f"'{x}'::double", x)) | st.sampled_from([1, -2]).map(
    lambda n: _same(str(n), float(n))
)
texts = st.text("ab%_!\\\n ä😀'", max_size=4)
days = st.dates(datetime.date(1969, 12, 30), datetime.date(1970, 1, 3))
moments = st.datetimes(datetime.datetime(1969, 12, 31, 23, 59, 58), datetime.datetime(1970, 1, 1, 0, 0, 2))
EAST = datetime.timezone(datetime.timedelta(hours=2))

KINDS: dict[str, Kind] = {
    "small": Kind(pa.int8(), st.integers(-3, 3), numbers),
    "big": Kind(pa.int64(), st.integers(-3, 3), numbers),
    "deci": Kind(pa.decimal128(5, 2), st.decimals(-3, 3, places=2), numbers),
    "dbl": Kind(pa.float64(), floats, float_literals),
    "flt": Kind(pa.float32(), floats, float_literals),
    "txt": Kind(pa.string(), texts, texts.map(lambda x: _same("'" + x.replace("'", "''") + "'", x))),
    "bin": Kind(
        pa.binary(),
        st.binary(max_size=2),
        st.binary(max_size=2).map(lambda x: (f"x'{x.hex()}'", f"unhex('{x.hex()}')", x)),
    ),
    "dat": Kind(pa.date32(), days, days.map(lambda x: _same(f"date '{x}'", x))),
    "tim": Kind(
        pa.time32("ms"),
        st.times().map(lambda x: x.replace(microsecond=x.microsecond // 1000 * 1000)),
        st.times().map(lambda x: _same(f"time '{x.isoformat('microseconds')}'", x)),
    ),
    "tms": Kind(pa.timestamp("us"), moments, moments.map(lambda x: _same(f"timestamp '{x}'", x))),
    "ltz": Kind(
        pa.timestamp("us", tz="UTC"),
        moments.map(lambda x: x.replace(tzinfo=UTC)),
        moments.map(lambda x: x.replace(tzinfo=EAST)).map(lambda x: _same(f"timestamptz '{x}'", x)),
    ),
    "boo": Kind(pa.bool_(), st.booleans(), st.booleans().map(lambda x: _same(str(x).lower(), x))),
}
NESTED = {"lst": pa.list_(pa.int32())}
TABLE = Schema(pa.schema([*((name, kind.arrow) for name, kind in KINDS.items()), *NESTED.items()]))


class Condition(NamedTuple):
    ours: str
    duckdb: str
    holds: Callable[[dict[str, Any]], bool | None]
    """SQL's answer for one row: true, false, or None for unknown."""


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _key(column: str, value: Any) -> Any:
    if column == "flt" and isinstance(value, float):
        value = float(np.float32(value))
    return _exact(value) if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool) else value


def _compare(column: str, sign: str, literal: Any) -> Callable[[dict[str, Any]], bool | None]:
    def holds(row: dict[str, Any]) -> bool | None:
        if row[column] is None or literal is None:
            return None
        return COMPARISONS[sign](_key(column, row[column]), _key(column, literal))

    return holds


def _and(*parts: bool | None) -> bool | None:
    return False if False in parts else None if None in parts else True


def _not(part: bool | None) -> bool | None:
    return None if part is None else not part


def _or(*parts: bool | None) -> bool | None:
    return _not(_and(*map(_not, parts)))


def _like(column: str, pattern: str, escape: str | None) -> Callable[[dict[str, Any]], bool | None]:
    expression, at = "", 0
    while at < len(pattern):
        if escape is not None and pattern[at] == escape:
            at += 1
            expression += re.escape(pattern[at])
        else:
            expression += {"%": ".*", "_": "."}.get(pattern[at], re.escape(pattern[at]))
        at += 1
    return lambda row: None if row[column] is None else bool(re.fullmatch(expression, row[column], re.DOTALL))


@st.composite
def comparisons(draw: st.DrawFn) -> Condition:
    column = draw(st.sampled_from([*KINDS, *NESTED]))
    form = draw(st.sampled_from(["compare", "compare", "in", "between", "null", "like", "distinct"]))
    if form == "null" or column in NESTED:
        negated = draw(st.booleans())
        text = f"{column} is {'not ' if negated else ''}null"
        return Condition(text, text, lambda row: (row[column] is None) != negated)
    null = st.just(_same("null", None))
    literals = KINDS[column].literals
    negated = draw(st.booleans())
    word = "not " if negated else ""
    if form == "like" and column == "txt":
        pattern = draw(texts)
        escape = draw(st.none() | st.just("!"))
        if escape is not None:
            # DuckDB wants a wildcard or the escape itself after an escape.
            pattern = re.sub("!(?![%_!])", "", pattern)
            if pattern.replace("!!", "").endswith("!"):
                pattern += "%"
        quoted = pattern.replace("'", "''")
        text = f"txt {word}like '{quoted}'" + ("" if escape is None else f" escape '{escape}'")
        like = _like("txt", pattern, escape)
        return Condition(text, text, (lambda row: _not(like(row))) if negated else like)
    if form == "in":
        found = draw(st.lists(literals | null, min_size=1, max_size=3))
        ours, theirs = (", ".join(item[side] for item in found) for side in (0, 1))
        equal = [_compare(column, "=", item[2]) for item in found]

        def is_in(row: dict[str, Any]) -> bool | None:
            answer = _or(*(one(row) for one in equal))
            return _not(answer) if negated else answer

        return Condition(f"{column} {word}in ({ours})", f"{column} {word}in ({theirs})", is_in)
    if form == "between":
        low, high = draw(literals), draw(literals | null)
        at_least, at_most = _compare(column, ">=", low[2]), _compare(column, "<=", high[2])

        def between(row: dict[str, Any]) -> bool | None:
            answer = _and(at_least(row), at_most(row))
            return _not(answer) if negated else answer

        return Condition(
            f"{column} {word}between {low[0]} and {high[0]}", f"{column} {word}between {low[1]} and {high[1]}", between
        )
    literal = draw(literals | null)
    if form == "distinct":
        equals = _compare(column, "=", literal[2])

        def distinct(row: dict[str, Any]) -> bool:
            answer = equals(row)
            return (((row[column] is None) != (literal[2] is None)) if answer is None else not answer) != negated

        return Condition(
            f"{column} is {word}distinct from {literal[0]}", f"{column} is {word}distinct from {literal[1]}", distinct
        )
    sign = draw(st.sampled_from(list(COMPARISONS)))
    return Condition(
        f"{column} {sign} {literal[0]}", f"{column} {sign} {literal[1]}", _compare(column, sign, literal[2])
    )


def _join(word: str, answer: Callable[..., bool | None]) -> Callable[[tuple[Condition, Condition]], Condition]:
    def join(pair: tuple[Condition, Condition]) -> Condition:
        left, right = pair
        return Condition(
            f"({left.ours} {word} {right.ours})",
            f"({left.duckdb} {word} {right.duckdb})",
            lambda row: answer(left.holds(row), right.holds(row)),
        )

    return join


def _negated(part: Condition) -> Condition:
    return Condition(f"not ({part.ours})", f"not ({part.duckdb})", lambda row: _not(part.holds(row)))


conditions = st.recursive(
    comparisons(),
    lambda inner: (
        st.tuples(inner, inner).map(_join("and", _and))
        | st.tuples(inner, inner).map(_join("or", _or))
        | inner.map(_negated)
    ),
    max_leaves=4,
)
rows = st.lists(
    st.fixed_dictionaries(
        {
            **{name: st.none() | kind.values for name, kind in KINDS.items()},
            "lst": st.none() | st.lists(st.integers(0, 1), max_size=1),
        }
    ),
    min_size=1,
    max_size=6,
)


@functools.cache
def _duckdb() -> Any:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    return connection


OF_NOTHING = dict.fromkeys([*KINDS, *NESTED])
NEGATED_TESTS = Condition(
    *2 * ("not (boo is not distinct from true) and not (boo is true)",), lambda row: row["boo"] is not True
)
EVERY_NUMBER = Condition("dbl > 1", "dbl > 1", _compare("dbl", ">", 1))


@settings(max_examples=150, deadline=None)
@example([OF_NOTHING | {"dbl": math.nan}], EVERY_NUMBER)
@example([OF_NOTHING, OF_NOTHING | {"boo": True}], NEGATED_TESTS)
@given(rows, conditions)
def test_conditions_keep_what_sql_keeps(found: list[dict[str, Any]], condition: Condition) -> None:
    table = pa.Table.from_pylist(found, schema=TABLE.arrow_schema)
    positions = pa.array(range(len(found)))
    expected = [at for at, row in enumerate(found) if condition.holds(row) is True]
    predicate = parse_where(condition.ours, TABLE)
    kept = table.append_column("row", positions).filter(predicate.to_arrow_expression(TABLE))["row"].to_pylist()
    assert kept == expected, condition.ours
    connection = _duckdb()
    rows_of_table = table.append_column("row", positions)
    connection.register("source", rows_of_table)
    # A table of DuckDB's own: from Arrow data it would filter with Arrow.
    connection.execute("create or replace temp table t as select * from source")
    theirs = connection.execute(f"select row from t where {condition.duckdb} order by row").fetchall()
    assert [row for (row,) in theirs] == expected, condition.duckdb


WORDS = "and or not in is null true false between like escape distinct from date timestamp id Name price day ok tags"
SIGNS = """( ) , = <> < >= + - . 5 -1.5 1e9 .5 'x' 'it''s' '2024-01-15' 'nan' x'00' "id" `id` " ' ä 🙂 \0"""
pieces = st.sampled_from([*WORDS.split(), *SIGNS.split()])


@settings(max_examples=300)
@given(st.lists(pieces, max_size=12).map(" ".join) | st.text(max_size=30))
def test_any_text_is_a_condition_or_an_error_of_ours(text: str) -> None:
    try:
        predicate = parse_where(text, SCHEMA)
    except InvalidArgumentError:
        return
    predicate.to_arrow_expression(SCHEMA)
