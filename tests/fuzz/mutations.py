# SPDX-License-Identifier: Apache-2.0
"""Small changes to good bytes, as data: they can be printed, repeated, and left out one by one to find the guilty."""

from __future__ import annotations

import random
import struct
from typing import Any

from tests.records.forge import Parts

Op = tuple[Any, ...]
"""The name of a change and its arguments."""

INTERESTING = (
    0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 0x3F, 0x40, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 2**24, 2**28,
    2**30, 2**31 - 1, 2**31, 2**32 - 1, 2**33, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2, 2**64 - 8,
)  # fmt: skip
_WIDTHS = (1, 2, 4, 4, 4, 8)
_OPS_MAX = 3


def byte_ops(generator: random.Random, size: int) -> list[Op]:
    """One to three changes to a byte string of this size. Positions are taken modulo what is there."""
    pick = generator.random
    ops: list[Op] = []
    for _ in range(1 + int(pick() * _OPS_MAX)):
        kind, at = int(pick() * 9), int(pick() * (size or 1))
        if kind <= 1:
            ops.append(("flip", at, int(pick() * 8)))
        elif kind == 2:
            ops.append(("set", at, int(pick() * 256)))
        elif kind <= 4:
            ops.append(("number", at, _WIDTHS[int(pick() * 6)], INTERESTING[int(pick() * len(INTERESTING))]))
        elif kind == 5:
            ops.append(("add", at - at % 4, int(pick() * 9) - 4))
        elif kind == 6:
            ops.append(("delete", at, 1 + int(pick() * 8)))
        elif kind == 7:
            ops.append(("insert", at, generator.randbytes(1 + int(pick() * 8))))
        else:
            ops.append(("cut", at))
    return ops


def change_bytes(data: bytes, ops: list[Op]) -> bytes:
    """The bytes after all changes."""
    changed = bytearray(data)
    for op in ops:
        size = len(changed)
        at = op[1] % size if size else 0
        if op[0] == "insert":
            changed[at:at] = op[2]
        elif not size:
            continue
        elif op[0] == "flip":
            changed[at] ^= 1 << op[2]
        elif op[0] == "set":
            changed[at] = op[2]
        elif op[0] == "number":
            changed[at : at + op[2]] = (op[3] % (1 << (8 * op[2]))).to_bytes(op[2], "little")
        elif op[0] == "add" and at + 4 <= size:
            (value,) = struct.unpack_from("<i", changed, at)
            struct.pack_into("<I", changed, at, (value + op[2]) % 2**32)
        elif op[0] == "delete":
            del changed[at : at + op[2]]
        elif op[0] == "cut":
            del changed[at:]
    return bytes(changed)


def part_ops(generator: random.Random, parts: Parts) -> list[Op]:
    """One to three changes to a message that is taken apart: its numbers, and what is in its buffers."""
    pick = generator.random
    ops: list[Op] = []
    for _ in range(1 + int(pick() * _OPS_MAX)):
        kind = int(pick() * 8)
        if kind == 0:
            ops.append(("node", int(pick() * len(parts.nodes)), int(pick() * 9) - 4))
        elif kind == 1:
            number = INTERESTING[int(pick() * len(INTERESTING))] % 2**63
            ops.append(("node =", int(pick() * len(parts.nodes)), number))
        elif kind == 2:
            ops.append(("declare", int(pick() * len(parts.buffers)), int(pick() * 200) - 50))
        elif kind == 3:
            ops.append(("swap", int(pick() * len(parts.buffers)), int(pick() * len(parts.buffers))))
        else:
            # Most of what can go wrong is in the buffers that hold something.
            filled = [i for i, buffer in enumerate(parts.buffers) if buffer]
            if filled:
                index = filled[int(pick() * len(filled))]
                ops.append(("buffer", index, byte_ops(generator, len(parts.buffers[index]))[:1]))
    return ops


def change_parts(parts: Parts, ops: list[Op]) -> tuple[Parts, dict[int, int]]:
    """The message after all changes, and the sizes its compressed buffers announce wrongly."""
    changed = Parts(parts.rows, list(parts.nodes), list(parts.buffers))
    declared: dict[int, int] = {}
    for op in ops:
        if op[0] == "node":
            changed.nodes[op[1]] += op[2]
        elif op[0] == "node =":
            changed.nodes[op[1]] = op[2]
        elif op[0] == "declare":
            declared[op[1]] = len(changed.buffers[op[1]]) + op[2]
        elif op[0] == "swap":
            one, other = op[1], op[2]
            changed.buffers[one], changed.buffers[other] = changed.buffers[other], changed.buffers[one]
        else:
            changed.buffers[op[1]] = change_bytes(changed.buffers[op[1]], op[2])
    return changed, declared
