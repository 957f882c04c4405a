"""The machines on which the lock works, and the numbers of the system calls that it leaves.

The list is what an interpreter calls that computes and uses two pipes, found by tracing one. None of them
takes a path, makes a descriptor, or reaches another process. Two that are often on such lists are not on this
one: `futex`, which one thread alone never needs, and `madvise`, by which a process of root may retire the
machine's memory.
"""

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple


class Architecture(NamedTuple):
    """One machine's numbers of system calls, and `audit`, by which a filter recognises them.

    Attributes:
        free: Allowed with any arguments: memory given back or moved, clocks, random numbers, the end.
        mapping: Allowed unless the memory would be executable.
        read, write: Allowed on the pipe of requests, and on that of answers, only.
    """

    audit: int
    free: tuple[int, ...]
    mapping: tuple[int, ...]
    read: int
    write: int


_FREE = {  # by call: its number on x86_64 and on aarch64, if it is there
    "brk": (12, 214),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "clock_gettime": (228, 113),
    "gettimeofday": (96, 169),
    "time": (201,),
    "getrandom": (318, 278),
    "rt_sigreturn": (15, 139),
    "exit": (60, 93),
    "exit_group": (231, 94),
}
_MAPPING = {"mmap": (9, 222), "mprotect": (10, 226)}


def _numbers(calls: Mapping[str, tuple[int, ...]], machine: int) -> tuple[int, ...]:
    return tuple(numbers[machine] for numbers in calls.values() if machine < len(numbers))


ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, _numbers(_FREE, 0), _numbers(_MAPPING, 0), read=0, write=1),
    "aarch64": Architecture(0xC00000B7, _numbers(_FREE, 1), _numbers(_MAPPING, 1), read=63, write=64),
}
"""The known machines, by the kernel's name of them."""


def architecture() -> Architecture | None:
    """This machine's; None if the lock does not work on it: another system, machine or size of pointers."""
    if sys.platform != "linux" or sys.byteorder != "little" or sys.maxsize < 2**32:
        return None
    return ARCHITECTURES.get(os.uname().machine)
