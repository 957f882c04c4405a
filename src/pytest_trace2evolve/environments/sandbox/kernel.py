"""The lock of the child: the kernel permanently restricts the process before it reads a generated source.

Python cannot confine hostile Python, so the kernel must. After `lock`, the process may only compute, read
requests from one pipe and write answers to another. Any other system call kills the process at once (SIGSYS).

- *seccomp* filters the system calls and allows none for files, sockets, processes, threads or signals. Memory
  can never be executable, so the process cannot run machine code of its own either.
- *Landlock*, if the kernel has it, denies the whole file system, the network and signals a second time, in
  case an allowed system call ever gives access to them.
- *Limits* bound memory and processor time, and all capabilities are dropped, so root has no special rights.

Only the child imports this module. No step can be undone, so no other process should call it.
"""

import ctypes
import fcntl
import os
import resource
import signal
import struct
from collections.abc import Iterator

from pytest_trace2evolve.environments.sandbox.policy import ARCHITECTURES, Architecture, current_architecture

_NO_NEW_PRIVILEGES, _DUMPABLE, _SECCOMP, _SECCOMP_FILTER = 38, 4, 22, 2
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT, _LANDLOCK_VERSION = 444, 446, 1
_KILL, _ALLOW = 0x80000000, 0x7FFF0000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_PROT_EXEC = 4
_X32_BIT = 0x40000000
_CAPABILITY_VERSION = 0x20080522

_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""The number of file rights in each version of Landlock; version 5's number is used for later versions."""

_LIBC = ctypes.CDLL(None, use_errno=True)


class LockError(Exception):
    """The kernel refused a part of the lock; the message names the part."""


def tie_to_parent(life_pipe: int) -> None:
    """Make the kernel kill this process when its parent ends, even if the process is busy.

    Only the parent holds the other end of the pipe `life_pipe`, which is never written to.
    """
    fcntl.fcntl(life_pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life_pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life_pipe, fcntl.F_SETFL, fcntl.fcntl(life_pipe, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    # The parent may have ended before the signal was set up. The pipe is then at its end already.
    try:
        has_ended = os.read(life_pipe, 1) == b""
    except BlockingIOError:
        has_ended = False
    if has_ended:
        os._exit(1)


def lock(requests: int, answers: int, memory_bytes: int, cpu_seconds: int) -> None:
    """Restrict this process to computing, reading from one pipe and writing to another.

    Args:
        requests: The pipe to read from.
        answers: The pipe to write to.
        memory_bytes: Bytes of memory that the process may use beyond the interpreter's own.
        cpu_seconds: Seconds of processor time that the process may use.

    Raises:
        LockError: the kernel refused a part of the lock; the process must end.
    """
    architecture = current_architecture()
    if architecture is None:
        raise LockError(f"this platform is not supported; it must be Linux on {' or '.join(ARCHITECTURES)}")
    _prctl("no_new_privs", _NO_NEW_PRIVILEGES, 1)
    _prctl("PR_SET_DUMPABLE", _DUMPABLE, 0)
    memory_bytes += _address_space_bytes()
    _restrict_with_landlock()
    _limit_resources(memory_bytes, cpu_seconds)
    # An allowed system call might do more for root than for other users.
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _check_result("to drop capabilities", _LIBC.capset(ctypes.c_char_p(header), ctypes.c_char_p(bytes(24))))
    program = list(_filter_program(architecture, requests, answers))
    instructions = ctypes.create_string_buffer(b"".join(program), 8 * len(program))
    filters = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(instructions)))
    _prctl("seccomp filters", _SECCOMP, _SECCOMP_FILTER, ctypes.addressof(filters))


def _check_result(operation: str, result: int) -> int:
    """Return the result of a system call; raise a `LockError` if it failed."""
    if result < 0:
        raise LockError(f"the kernel refuses {operation} ({os.strerror(ctypes.get_errno())})")
    return result


def _prctl(operation: str, option: int, first: int, second: int = 0) -> None:
    arguments = map(ctypes.c_ulong, (first, second, 0, 0))
    _check_result(operation, _LIBC.prctl(ctypes.c_int(option), *arguments))


def _restrict_with_landlock() -> None:
    """Deny files, and on later kernels TCP and signals to other processes, if the kernel has Landlock."""
    create_call = ctypes.c_long(_LANDLOCK_CREATE)
    version = _LIBC.syscall(create_call, None, ctypes.c_size_t(0), ctypes.c_uint32(_LANDLOCK_VERSION))
    if version < 1:
        return
    handled_rights = struct.pack("=Q", (1 << _FILE_RIGHTS[min(version, 5)]) - 1)
    if version >= 4:
        handled_rights += struct.pack("=Q", 0b11)
    if version >= 6:
        handled_rights += struct.pack("=Q", 0b11)
    no_flags = ctypes.c_uint32(0)
    size = ctypes.c_size_t(len(handled_rights))
    ruleset = _check_result(
        "a Landlock ruleset", _LIBC.syscall(create_call, ctypes.c_char_p(handled_rights), size, no_flags)
    )
    restrict_call = ctypes.c_long(_LANDLOCK_RESTRICT)
    _check_result("Landlock", _LIBC.syscall(restrict_call, ctypes.c_int(ruleset), no_flags))
    os.close(ruleset)


def _address_space_bytes() -> int:
    """The bytes of address space that this process currently has."""
    descriptor = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        return int(os.read(descriptor, 100).split()[0]) * resource.getpagesize()
    finally:
        os.close(descriptor)


def _limit_resources(memory_bytes: int, cpu_seconds: int) -> None:
    limits = {
        resource.RLIMIT_AS: (memory_bytes, memory_bytes),
        # The soft limit sends SIGXCPU, which shows the cause; the hard limit kills one second later.
        resource.RLIMIT_CPU: (cpu_seconds, cpu_seconds + 1),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_NOFILE: (0, 0),
        resource.RLIMIT_NPROC: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    for name, (soft, hard) in limits.items():
        max_limit = resource.getrlimit(name)[1]
        if max_limit != resource.RLIM_INFINITY:
            soft, hard = min(soft, max_limit), min(hard, max_limit)
        try:
            resource.setrlimit(name, (soft, hard))
        except (OSError, ValueError) as error:
            raise LockError(f"the kernel refuses a limit ({error})") from None


def _filter_program(architecture: Architecture, requests: int, answers: int) -> Iterator[bytes]:
    """Yield the instructions of the filter, which reads each 64-bit argument as two halves, low half first.

    Calls of a different architecture are rejected first, because the same numbers mean different calls there.
    """
    yield _instruction(_LOAD, _ARCHITECTURE_OFFSET)
    yield _instruction(_EQUAL, architecture.audit_number, jump_if_true=1)
    yield _instruction(_RETURN, _KILL)
    yield _instruction(_LOAD, _NUMBER_OFFSET)
    yield _instruction(_AT_LEAST, _X32_BIT, jump_if_false=1)
    yield _instruction(_RETURN, _KILL)
    for number in architecture.unrestricted:
        yield _instruction(_EQUAL, number, jump_if_false=1)
        yield _instruction(_RETURN, _ALLOW)
    for number, pipe in ((architecture.read, requests), (architecture.write, answers)):
        yield _instruction(_EQUAL, number, jump_if_false=6)
        yield _instruction(_LOAD, _ARGUMENTS_OFFSET + 4)
        yield _instruction(_EQUAL, 0, jump_if_false=3)
        yield _instruction(_LOAD, _ARGUMENTS_OFFSET)
        yield _instruction(_EQUAL, pipe, jump_if_false=1)
        yield _instruction(_RETURN, _ALLOW)
        yield _instruction(_RETURN, _KILL)
    for number in architecture.memory_mapping:
        yield _instruction(_EQUAL, number, jump_if_false=4)
        yield _instruction(_LOAD, _ARGUMENTS_OFFSET + 16)  # the third argument: the protection
        yield _instruction(_ANY_BIT, _PROT_EXEC, jump_if_true=1)
        yield _instruction(_RETURN, _ALLOW)
        yield _instruction(_RETURN, _KILL)
    yield _instruction(_RETURN, _KILL)


def _instruction(code: int, value: int, *, jump_if_true: int = 0, jump_if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jump_if_true, jump_if_false, value)
