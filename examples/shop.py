# SPDX-License-Identifier: Apache-2.0
"""A shop in a folder: create, write, read, look up and follow a table with `fluss.connect()`."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import fluss


@dataclass
class Order:
    id: int
    item: str
    price: float | None = None


def main() -> None:
    folder = Path(tempfile.mkdtemp()) / "shop"
    with fluss.connect(folder) as db:
        db.create_table("orders", Order, primary_key="id", buckets=4)
        orders = db.table("orders", Order)

        print(orders.upsert(Order(number, "tea" if number % 2 else "milk", number / 4) for number in range(1_000)))
        orders.upsert(Order(7, "tea", 99.0))
        orders.delete(where="price < 1")

        print(orders.get(7))
        print(len(orders), "orders,", orders.count(where="item = 'tea'"), "of them tea")
        print(orders.to_arrow(columns=["id", "price"], where="price > 249"))

        kinds = [change.kind for change in orders.changes()]
        print({kind: kinds.count(kind) for kind in dict.fromkeys(kinds)})

    with fluss.connect(folder) as db:  # the next program finds everything again
        print(db.table("orders", Order).get(7))


if __name__ == "__main__":
    main()
