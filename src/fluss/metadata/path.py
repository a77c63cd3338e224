# SPDX-License-Identifier: Apache-2.0
"""Names of tables, partitions of tables, buckets, and the servers of a cluster; and the rules for names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from fluss.errors import InvalidArgumentError, InvalidDatabaseError, InvalidTableError


def _name(what: str, first: object, second: object) -> str:
    name = first if second is None else second
    if not isinstance(name, str) or not name or (first is not None and second is not None):
        raise InvalidArgumentError(f"a TablePath needs one {what} name that is a non-empty string, not {name!r}")
    return name


@dataclass(frozen=True, order=True, slots=True, init=False, repr=False)
class TablePath:
    """The name of a table: its database and its own name. Whether the characters are legal is the server's to say."""

    database: str
    """The name of the database."""
    table: str
    """The name of the table within its database."""

    def __init__(
        self,
        database: str | None = None,
        table: str | None = None,
        *,
        database_name: str | None = None,
        table_name: str | None = None,
    ) -> None:
        object.__setattr__(self, "database", _name("database", database, database_name))
        object.__setattr__(self, "table", _name("table", table, table_name))

    @property
    def database_name(self) -> str:
        """The name of the database."""
        return self.database

    @property
    def table_name(self) -> str:
        """The name of the table within its database."""
        return self.table

    def table_path_str(self) -> str:
        """``database.table``."""
        return f"{self.database}.{self.table}"

    def __str__(self) -> str:
        return self.table_path_str()

    def __repr__(self) -> str:
        return f"TablePath({self.database!r}, {self.table!r})"


DEFAULT_DATABASE = "fluss"


def table_path_of(value: object) -> TablePath:
    """A path, or the text ``"database.table"`` of one; a name without a dot is a table of the database ``fluss``."""
    if isinstance(value, TablePath):
        return value
    if isinstance(value, str) and value.strip("."):
        database, dot, table = value.rpartition(".")
        return TablePath(database if dot else DEFAULT_DATABASE, table)
    kind = type(value).__name__
    raise InvalidArgumentError(
        f"Expected a TablePath, got {kind} {value!r:.80}; write TablePath('database', 'table') or 'database.table'"
    )


_INT_OR_NONE = frozenset({int, type(None)})


class TableBucket:
    """One bucket of a table, or of one of its partitions."""

    __slots__ = ("_bucket_id", "_hash", "_partition_id", "_table_id")

    def __init__(self, table_id: int, bucket: int, partition_id: int | None = None) -> None:
        if type(table_id) is not int or type(bucket) is not int or type(partition_id) not in _INT_OR_NONE:
            for what, value in (("table_id", table_id), ("bucket", bucket), ("partition_id", partition_id)):
                if not isinstance(value, int) and not (value is None and what == "partition_id"):
                    raise InvalidArgumentError(f"{what} of a TableBucket must be an integer, not {value!r}")
        self._table_id = table_id
        self._bucket_id = bucket
        self._partition_id = partition_id
        # Buckets are keys of every map on the hot path.
        self._hash = hash((table_id, partition_id, bucket))

    @staticmethod
    def with_partition(table_id: int, partition_id: int, bucket: int) -> TableBucket:
        """A bucket of a partition."""
        return TableBucket(table_id, bucket, partition_id)

    @property
    def table_id(self) -> int:
        """The id of the table."""
        return self._table_id

    @property
    def bucket_id(self) -> int:
        """The number of the bucket within its table or partition, from 0."""
        return self._bucket_id

    @property
    def bucket(self) -> int:
        """The number of the bucket within its table or partition, from 0."""
        return self._bucket_id

    @property
    def partition_id(self) -> int | None:
        """The id of the partition; None for tables without partitions."""
        return self._partition_id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TableBucket):
            return NotImplemented
        return (
            self._bucket_id == other._bucket_id
            and self._table_id == other._table_id
            and self._partition_id == other._partition_id
        )

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[TableBucket], tuple[int, int, int | None]]:
        return TableBucket, (self._table_id, self._bucket_id, self._partition_id)

    def __repr__(self) -> str:
        partition = "" if self._partition_id is None else f"partition_id={self._partition_id}, "
        return f"TableBucket(table_id={self._table_id}, {partition}bucket={self._bucket_id})"


COORDINATOR_SERVER = "CoordinatorServer"
TABLET_SERVER = "TabletServer"


@dataclass(frozen=True)
class ServerNode:
    """One server of the cluster."""

    id: int
    host: str
    port: int
    server_type: str
    """``CoordinatorServer`` or ``TabletServer``."""

    @property
    def uid(self) -> str:
        """A name that is unique in the cluster: ``cs-0``, ``ts-1``."""
        return f"{'cs' if self.server_type == COORDINATOR_SERVER else 'ts'}-{self.id}"

    def __str__(self) -> str:
        return f"{self.uid} at {self.host}:{self.port}"


NAME_LENGTH_MAX = 200
RESERVED_PREFIX = "__"

_LEGAL = re.compile(r"[A-Za-z0-9_-]+")


def name_problem(name: str) -> str | None:
    """Why a name is not legal, or None."""
    if not name:
        return "it must not be empty"
    if name in (".", ".."):
        return "it must not be '.' or '..'"
    if len(name) > NAME_LENGTH_MAX:
        return f"it has {len(name)} characters, {NAME_LENGTH_MAX} are allowed"
    if not _LEGAL.fullmatch(name):
        return f"{name!r:.300} contains one or more characters other than ASCII alphanumerics, '_' and '-'"
    return None


def reserved_prefix_problem(name: str) -> str | None:
    """Why a name may not be created, or None: ``__`` is kept for internal use."""
    if not name.startswith(RESERVED_PREFIX):
        return None
    # The words of the Java server, which tools look for.
    return (
        f"'{RESERVED_PREFIX}' is not allowed as prefix, since it is reserved for internal databases/internal "
        "tables/internal partitions in Fluss server"
    )


def validate_database_name(name: str) -> None:
    """Check the name of a database that is to be created (code 16)."""
    problem = name_problem(name) or reserved_prefix_problem(name)
    if problem:
        raise InvalidDatabaseError(f"Database name {name!r:.300} is invalid: {problem}.")


def validate_table_name(name: str) -> None:
    """Check the name of a table that is to be created (code 15)."""
    problem = name_problem(name) or reserved_prefix_problem(name)
    if problem:
        raise InvalidTableError(f"Table name {name!r:.300} is invalid: {problem}.")


LAKE = "lake"
VIEW_NAMES = ("changelog", "binlog", LAKE)


def split_virtual(path: TablePath) -> tuple[TablePath, str | None]:
    """The table that a path names, and the view of it: ``changelog``, ``binlog``, ``lake`` or None."""
    name, dollar, view = path.table_name.partition("$")
    if not dollar:
        return path, None
    if view not in VIEW_NAMES:
        raise InvalidArgumentError(f"'{path}': there are the virtual tables $changelog, $binlog and $lake, not ${view}")
    return TablePath(path.database_name, name), view


def bucket_text(bucket: TableBucket) -> str:
    """``7``, or ``12/7`` for bucket 7 of the partition with id 12."""
    partition = "" if bucket.partition_id is None else f"{bucket.partition_id}/"
    return f"{partition}{bucket.bucket_id}"


@lru_cache(maxsize=4096)
def parse_bucket(table_id: int, text: str) -> TableBucket:
    """Read what `bucket_text` wrote. Rows of a group name the same buckets again and again."""
    partition, slash, number = text.rpartition("/")
    return TableBucket(table_id, int(number), int(partition) if slash else None)
