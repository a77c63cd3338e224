# SPDX-License-Identifier: Apache-2.0
"""Our own client, in both of its faces: ``driver_fluss.py`` drives ``fluss``, ``driver_fluss.py aio`` ``fluss.aio``."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from driver_python import Command, PythonDriver


class Ours(PythonDriver):
    def __init__(self, face: str) -> None:
        super().__init__(importlib.import_module(face))
        self.client = face

    def options(self, c: Command) -> dict[str, str]:
        options = super().options(c)
        if c.get("bucketing"):
            options["client.bucketing"] = c["bucketing"]
        return options

    def schema(self, table: dict[str, Any]) -> Any:
        metadata = importlib.import_module("fluss.metadata")
        columns = []
        for column in table["columns"]:
            aggregate = column.get("agg")
            function = metadata.AggFunction(aggregate["type"], aggregate.get("parameters") or {}) if aggregate else None
            columns.append(
                metadata.Column(
                    column["name"],
                    metadata.data_type_from_json(column["type"]),
                    comment=column.get("comment"),
                    agg_function=function,
                )
            )
        automatic = (table["auto_increment"],) if table.get("auto_increment") else ()
        return metadata.Schema.of(columns, table.get("primary_key") or (), auto_increment_columns=automatic)

    async def op_alter_table(self, c: Command) -> None:
        metadata = importlib.import_module("fluss.metadata")
        await self.admin.alter_table(
            self.path(c),
            add_columns=[
                metadata.Column(one["name"], metadata.data_type_from_json(one["type"]), comment=one.get("comment"))
                for one in c.get("add_columns", [])
            ],
            set_properties=c.get("set") or {},
            reset_properties=c.get("reset") or [],
            ignore_if_not_exists=c.get("ignore", False),
        )

    def _acl(self, kind: Any, c: Command) -> Any:
        acl = c["acl"]
        return kind(
            resource_type=self.fluss.ResourceType[acl["resource_type"]],
            resource_name=acl["resource"],
            principal_name=acl["user"],
            operation=self.fluss.OperationType[acl["operation"]],
        )

    async def op_create_acl(self, c: Command) -> None:
        await self.admin.create_acls([self._acl(self.fluss.AclBinding, c)])

    async def op_drop_acl(self, c: Command) -> int:
        return len(await self.admin.drop_acls([self._acl(self.fluss.AclFilter, c)]))

    async def op_list_acls(self, c: Command) -> Any:
        return [
            [one.resource_type.name, one.resource_name, one.principal_name, one.operation.name]
            for one in await self.admin.list_acls()
        ]


if __name__ == "__main__":
    Ours("fluss.aio" if sys.argv[1:] == ["aio"] else "fluss").run()
