"""Searches the machine code of a kernel for a bug of ptxas 12.8: a uniform register that is read before it is set. On a
Hopper a matrix product may then read its operand from a wrong address and access memory illegally.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import triton

_TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
_INSTRUCTION = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(\S+)\s*([^;]*);")
_REGISTER = re.compile(r"\bUR(\d+)\b")
_DESCRIPTORS = re.compile(r"gdesc\[UR(\d+)\]")
_PAIR = re.compile(r"\.(64|WIDE)\b")


def disassemble(cubin: bytes, folder: Path) -> str:
    place = folder / "kernel.cubin"
    place.write_bytes(cubin)
    return subprocess.run([_TOOL, "-c", place], capture_output=True, text=True, check=True).stdout


def unset_registers(listing: str) -> list[str]:
    """Instructions that read a uniform register which no earlier instruction has set or read."""
    known: set[int] = set()
    found = []
    for name, operands in _INSTRUCTION.findall(listing):
        first, _, rest = (part.strip() for part in operands.partition(","))
        sets = re.fullmatch(r"UR(\d+)", first)
        read = rest if sets else operands
        # Four registers describe both operands of a product; the first two are not read if one is in registers.
        descriptors = {int(n) + more for n in _DESCRIPTORS.findall(read) for more in (2, 3)}
        needed = descriptors | {int(n) for n in _REGISTER.findall(_DESCRIPTORS.sub("", read))}
        if needed - known:
            found.append(f"{name} {operands.strip()}")
        known |= needed
        if sets:
            known |= {int(sets[1]), int(sets[1]) + 1} if _PAIR.search(name) else {int(sets[1])}
    return found
