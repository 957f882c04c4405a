"""The machines on which the lock works, and the numbers of the system calls that it leaves.

The list is what an interpreter calls that computes and uses two pipes, found by tracing one. None of them
takes a path, makes a descriptor, or reaches another process. Two that are often on such lists are not on this
one: `futex`, which one thread alone never needs, and `madvise`, by which a process of root may retire the
machine's memory.
"""

import os
import sys
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
    mapping: tuple[int, int]
    read: int
    write: int


ARCHITECTURES = {
    "x86_64": Architecture(
        audit=0xC000003E,
        free=(
            12,  # brk
            11,  # munmap
            25,  # mremap
            228,  # clock_gettime
            96,  # gettimeofday
            201,  # time
            318,  # getrandom
            15,  # rt_sigreturn
            60,  # exit
            231,  # exit_group
        ),
        mapping=(9, 10),  # mmap, mprotect
        read=0,
        write=1,
    ),
    "aarch64": Architecture(
        audit=0xC00000B7,
        free=(
            214,  # brk
            215,  # munmap
            216,  # mremap
            113,  # clock_gettime
            169,  # gettimeofday
            278,  # getrandom
            139,  # rt_sigreturn
            93,  # exit
            94,  # exit_group
        ),
        mapping=(222, 226),  # mmap, mprotect
        read=63,
        write=64,
    ),
}
"""The known machines, by the kernel's name of them."""


def architecture() -> Architecture | None:
    """This machine's; None if the lock does not work on it: another system, machine or size of pointers."""
    if sys.platform != "linux" or sys.byteorder != "little" or sys.maxsize < 2**32:
        return None
    return ARCHITECTURES.get(os.uname().machine)
