"""The lock of the child: what the kernel takes from a process, for good, before it sees a generated source.

Python cannot hold hostile Python. So the kernel is asked to: after `lock` the process may compute, read
requests from one pipe and write answers to another, and nothing else. Every other system call kills it at
once (SIGSYS).

- *seccomp* filters the system calls. Files, sockets, processes, threads, signals: none has a call left.
  Memory may never be executable, so no machine code can be brought along either.
- *Landlock*, where the kernel has it, takes the whole file system, the network and the signals a second
  time, in case a listed call ever grew a way to them.
- *Limits* bound memory and processor time, and no capability is left: root is no more than anybody.

Imported by the child alone. Nothing here can be undone, so nobody else should call it.
"""

import ctypes
import fcntl
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

from pytest_trace2evolve.environments.sandbox.platforms import ARCHITECTURES, Architecture, architecture

_NO_NEW_PRIVILEGES, _DUMPABLE, _DEATH_SIGNAL, _SECCOMP, _SECCOMP_FILTER = 38, 4, 1, 22, 2
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446
_KILL, _ALLOW = 0x80000000, 0x7FFF0000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_PROT_EXEC = 4
_X32_BIT = 0x40000000

_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights over files each version of Landlock knows; later ones know those of the fifth."""


class Bounds(NamedTuple):
    """What a child may use in all.

    Attributes:
        memory: Bytes beyond what the interpreter itself holds when it is locked.
        cpu: Seconds of processor time.
    """

    memory: int
    cpu: int


class LockError(Exception):
    """The kernel did not grant a part of the lock; the message names it."""


def tie_to_parent(life: int, by_thread: bool) -> None:
    """Have the kernel kill this process when its parent ends, however busy it is.

    Args:
        life: A pipe whose other end only the parent holds. It is never written to.
        by_thread: Ask for the signal of a dying parent too. That one comes as soon as the *thread* ends that
            started the child, so only a main thread may ask for it.
    """
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    if by_thread:
        _prctl("the death signal", _DEATH_SIGNAL, signal.SIGKILL)
    # The parent may have ended before the signals were asked for: then the pipe is at its end already.
    try:
        ended = os.read(life, 1) == b""
    except BlockingIOError:
        ended = False
    if ended:
        os._exit(1)


def lock(requests: int, answers: int, bounds: Bounds) -> bool:
    """Take everything from this process but computing, one pipe to read and one to write.

    Returns:
        Whether Landlock holds the file system too.

    Raises:
        LockError: a part cannot be had; the process must not go on.
    """
    found = architecture()
    if found is None:
        raise LockError(f"this platform is none of {', '.join(f'Linux on {one}' for one in ARCHITECTURES)}")
    _prctl("no_new_privs", _NO_NEW_PRIVILEGES, 1)
    _prctl("PR_SET_DUMPABLE", _DUMPABLE, 0)
    held = _held()
    walled = _landlock()
    _bound(held, bounds)
    _drop_capabilities()
    program = list(_program(found, requests, answers))
    code = b"".join(program)
    instructions = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(program), ctypes.addressof(instructions))
    _prctl("seccomp filters", _SECCOMP, _SECCOMP_FILTER, header)
    return walled


def _prctl(what: str, option: int, value: int, pointer: bytes | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = [ctypes.c_ulong(number) for number in (value, 0, 0, 0)]
    arguments = [numbers[0], ctypes.c_char_p(pointer), *numbers[2:]] if pointer is not None else numbers
    if libc.prctl(ctypes.c_int(option), *arguments) != 0:
        raise LockError(f"the kernel refuses {what} ({os.strerror(ctypes.get_errno())})")


def _landlock() -> bool:
    """Deny files, and with later kernels TCP and signals to others; False where there is no Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return False
    rights = (1 << _FILE_RIGHTS[min(version, 5)]) - 1
    wanted = struct.pack("=Q", rights)
    if version >= 4:
        wanted += struct.pack("=Q", 0b11)
    if version >= 6:
        wanted += struct.pack("=Q", 0b11)
    ruleset = libc.syscall(
        ctypes.c_long(_LANDLOCK_CREATE),
        ctypes.c_char_p(wanted),
        ctypes.c_size_t(len(wanted)),
        ctypes.c_uint32(0),
    )
    if ruleset < 0:
        raise LockError(f"the kernel refuses a Landlock ruleset ({os.strerror(ctypes.get_errno())})")
    if libc.syscall(ctypes.c_long(_LANDLOCK_RESTRICT), ctypes.c_int(ruleset), ctypes.c_uint32(0)) != 0:
        raise LockError(f"the kernel refuses Landlock ({os.strerror(ctypes.get_errno())})")
    os.close(ruleset)
    return True


def _drop_capabilities() -> None:
    """Make root an ordinary user: a call that is left might mean more to root than to others."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = 0x20080522
    header, none = struct.pack("=Ii", version, 0), bytes(24)
    if libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(none)) != 0:
        raise LockError(f"the kernel refuses to drop capabilities ({os.strerror(ctypes.get_errno())})")


def _held() -> int:
    """Bytes of address space that this process has by now."""
    statistics = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        return int(os.read(statistics, 100).split()[0]) * resource.getpagesize()
    finally:
        os.close(statistics)


def _bound(held: int, bounds: Bounds) -> None:
    wanted = {
        resource.RLIMIT_AS: (held + bounds.memory,) * 2,
        # The soft limit ends it with SIGXCPU, which says why; the hard one a second later whatever it does.
        resource.RLIMIT_CPU: (bounds.cpu, bounds.cpu + 1),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_NOFILE: (0, 0),
        resource.RLIMIT_NPROC: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    for name, (soft, hard) in wanted.items():
        most = resource.getrlimit(name)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        try:
            resource.setrlimit(name, (soft, hard))
        except (OSError, ValueError) as error:
            raise LockError(f"the kernel refuses a limit ({error})") from None


def _program(machine: Architecture, requests: int, answers: int) -> Iterator[bytes]:
    """The filter, one instruction after another.

    Another architecture's numbers mean other calls, so those are killed before any number is looked at.
    """
    yield _step(_LOAD, _ARCHITECTURE_AT)
    yield _step(_EQUAL, machine.audit, yes=1)
    yield _step(_RETURN, _KILL)
    yield _step(_LOAD, _NUMBER_AT)
    yield _step(_AT_LEAST, _X32_BIT, no=1)
    yield _step(_RETURN, _KILL)
    for number in machine.free:
        yield _step(_EQUAL, number, no=1)
        yield _step(_RETURN, _ALLOW)
    for number, pipe in ((machine.read, requests), (machine.write, answers)):
        low, high = _halves(0)
        yield _step(_EQUAL, number, no=6)
        yield _step(_LOAD, high)
        yield _step(_EQUAL, 0, no=3)
        yield _step(_LOAD, low)
        yield _step(_EQUAL, pipe, no=1)
        yield _step(_RETURN, _ALLOW)
        yield _step(_RETURN, _KILL)
    for number in machine.mapping:
        yield _step(_EQUAL, number, no=4)
        yield _step(_LOAD, _halves(2)[0])
        yield _step(_ANY_BIT, _PROT_EXEC, yes=1)
        yield _step(_RETURN, _ALLOW)
        yield _step(_RETURN, _KILL)
    yield _step(_RETURN, _KILL)


def _step(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _halves(argument: int) -> tuple[int, int]:
    """Where the low and the high half of an argument stand."""
    assert sys.byteorder == "little"
    at = _ARGUMENTS_AT + 8 * argument
    return at, at + 4
