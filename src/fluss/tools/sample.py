# SPDX-License-Identifier: Apache-2.0
"""A sample table with live data, to have something to look at."""

from __future__ import annotations

import datetime as dt
import random
import threading
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fluss.db.blocking import Database

SAMPLE_TABLE = "orders"
_SCHEMA = "id bigint not null, item string, price decimal(10,2), quantity int, country string, at timestamp(3)"
_ITEMS = {"tea": 3.2, "mug": 8.5, "pot": 25.0, "jug": 14.9, "honey": 6.4}
_COUNTRIES = ("AR", "BR", "DE", "FR", "IN", "JP", "KE", "US")
_BATCH_S = 0.2


class LiveOrders:
    """Writes orders to the sample table, some of which change later.

    Example:
        orders = LiveOrders(db, rows_per_second=20)
        orders.run(threading.Event())
    """

    def __init__(self, db: Database, rows_per_second: float = 20.0) -> None:
        self._table = db.create_table(
            SAMPLE_TABLE, _SCHEMA, primary_key="id", buckets=2, comment="orders that come by themselves", exist_ok=True
        )
        self._rate = rows_per_second
        self._random = random.Random()
        self._next = self._table.count()
        self.written = 0

    def write(self, count: int) -> None:
        """Write some orders now."""
        rows = []
        for _ in range(count):
            again = self._next > 0 and self._random.random() < 0.1
            number = self._random.randrange(self._next) if again else self._next
            self._next += 0 if again else 1
            item = self._random.choice(list(_ITEMS))
            rows.append(
                {
                    "id": number,
                    "item": item,
                    "price": Decimal(str(_ITEMS[item])).quantize(Decimal("0.01")),
                    "quantity": self._random.randint(1, 5),
                    "country": self._random.choice(_COUNTRIES),
                    "at": dt.datetime.now(dt.timezone.utc).replace(tzinfo=None, microsecond=0),
                }
            )
        self._table.upsert(rows)
        self.written += count

    def run(self, stop: threading.Event) -> None:
        """Write at the given rate until the event is set."""
        owed = 0.0
        while not stop.wait(_BATCH_S):
            owed += self._rate * _BATCH_S
            if owed >= 1:
                self.write(int(owed))
                owed -= int(owed)
