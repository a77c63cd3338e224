# SPDX-License-Identifier: Apache-2.0
"""One side of a comparison: runs operations of `client_ops.py` with whatever `fluss` its interpreter imports.

Speaks JSON lines: `{"op": name, "args": {...}}` in, `{"seconds": s, "result": r}` out. The same file runs in the
project's environment and in that of the official client, so that both do exactly the same.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))


async def main() -> None:
    side = importlib.import_module(sys.argv[1]).Side()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = await getattr(side, command["op"])(**command.get("args", {}))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    await side.close()


if __name__ == "__main__":
    asyncio.run(main())
