"""Attempts to leave the sandbox: modules whose `attack(facts)` does a harm that a test can see.

An attempt succeeds when `attack` returns "escaped", or by what it left outside: a file in `facts["folder"]`,
a connection to `facts["port"]`, a signal to the process `facts["pid"]`.
"""

from typing import NamedTuple


class Attempt(NamedTuple):
    """One attempt.

    Attributes:
        source: The module.
        line: The line that the rules refuse first.
        cause: What they say of it.
    """

    source: str
    line: int
    cause: str


def _imports(modules: str, body: str) -> Attempt:
    """Machinery of the system: the import itself is refused."""
    indented = "\n".join(f"    {line}" for line in body.strip().splitlines())
    source = f"import {modules}\ndef attack(facts):\n{indented}\n    return 'escaped'\n"
    return Attempt(source, 1, f"`{modules.split(',')[0]}` must not be imported")


def _walks(reach: str, cause: str, *, before: str = "", line: int = 0) -> Attempt:
    """From something that is allowed to an `open`: the walk is refused."""
    first = before.count("\n") + 2
    source = (
        f"{before}def attack(facts):\n    opener = {reach}\n"
        "    opener(facts['folder'] + '/walked', 'w').close()\n    return 'escaped'\n"
    )
    return Attempt(source, line or first, cause)


_TOUCH = "['/bin/sh', '-c', 'touch ' + facts['folder'] + '/made']"
_LIBC = "libc = ctypes.CDLL(None, use_errno=True)\n"

SYSTEM = {
    "write a file": _imports("os", "os.close(os.open(facts['folder'] + '/made', os.O_CREAT | os.O_WRONLY))"),
    "read a file": _imports("os", "return os.read(os.open(facts['secret'], os.O_RDONLY), 99).decode()"),
    "read proc": _imports("os", "os.open('/proc/self/maps', os.O_RDONLY)"),
    "the parent's environment": _imports("os", "os.open(f\"/proc/{facts['pid']}/environ\", os.O_RDONLY)"),
    "open by a folder": _imports("os", "os.open('.', os.O_RDONLY | os.O_DIRECTORY)"),
    "list a folder": _imports("os", "os.listdir('/')"),
    "look at a file": _imports("os", "os.stat(facts['secret'])"),
    "remove a file": _imports("os", "os.unlink(facts['folder'] + '/kept')"),
    "rename a file": _imports("os", "os.rename(facts['folder'] + '/kept', facts['folder'] + '/made')"),
    "make a folder": _imports("os", "os.mkdir(facts['folder'] + '/made')"),
    "make a link": _imports("os", "os.symlink('/', facts['folder'] + '/made')"),
    "change the folder": _imports("os", "os.chdir('/')"),
    "a file in memory": _imports("os", "os.memfd_create('made')"),
    "a pipe": _imports("os", "os.pipe()"),
    "copy a descriptor": _imports("os", "os.dup(0)"),
    "standard output": _imports("os", "os.write(1, b'forged')"),
    "connect": _imports("socket", "socket.socket().connect(('127.0.0.1', facts['port']))"),
    "send a datagram": _imports(
        "socket",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', facts['port']))",
    ),
    "a pair of sockets": _imports("socket", "socket.socketpair()"),
    "fork": _imports("os", f"if os.fork() == 0:\n    os.execv('/bin/sh', {_TOUCH})\nos.wait()"),
    "a fork bomb": _imports(
        "os", "for _ in range(3):\n    if os.fork() == 0:\n        os._exit(0)\n    os.wait()"
    ),
    "start a program": _imports("subprocess", f"subprocess.run({_TOUCH}, check=True)"),
    "spawn": _imports("os", f"os.waitpid(os.posix_spawn('/bin/sh', {_TOUCH}, {{}}), 0)"),
    "a shell": _imports("os", "os.system('touch ' + facts['folder'] + '/made')"),
    "become a program": _imports("os", f"os.execv('/bin/sh', {_TOUCH})"),
    "a thread": _imports("threading", "one = threading.Thread(target=print)\none.start()\none.join()"),
    "signal the parent": _imports("os, signal", "os.kill(facts['pid'], signal.SIGUSR1)"),
    "signal by a descriptor": _imports(
        "os, signal", "signal.pidfd_send_signal(os.pidfd_open(facts['pid']), signal.SIGUSR1)"
    ),
    "ask who the parent is": _imports("os", "os.getppid()"),
    "ask what the machine is": _imports("os", "os.uname()"),
    "catch a signal": _imports("signal", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"),
    "set an alarm": _imports("signal", "signal.alarm(100)"),
    "raise a limit": _imports("resource", "resource.setrlimit(resource.RLIMIT_CPU, (900, 900))"),
    "be nice": _imports("os", "os.nice(1)"),
    "outlive the parent": _imports("fcntl, sys", "fcntl.fcntl(int(sys.argv[3]), fcntl.F_SETFL, 0)"),
    "close the pipe of life": _imports("os, sys", "os.close(int(sys.argv[3]))"),
    "sleep": _imports("time", "time.sleep(0.001)"),
    "the C library": _imports(
        "ctypes", _LIBC + "assert libc.creat((facts['folder'] + '/made').encode(), 448) > 0"
    ),
    "be traced": _imports("ctypes", _LIBC + "assert libc.ptrace(0, 0, 0, 0) == 0"),
    "shared memory": _imports(
        "ctypes", _LIBC + "one = libc.shmget(0, 4096, 0o1600)\nassert libc.shmctl(one, 0, 0) == 0"
    ),
    "drop the filter": _imports("ctypes", _LIBC + "assert libc.prctl(4, 1, 0, 0, 0) == 0"),
    "the parent's memory": _imports(
        "ctypes, struct",
        _LIBC
        + """
got = ctypes.create_string_buffer(6)
here = ctypes.create_string_buffer(struct.pack('QQ', ctypes.addressof(got), 6))
there = ctypes.create_string_buffer(struct.pack('QQ', facts['address'], 6))
assert libc.process_vm_readv(facts['pid'], here, 1, there, 1, 0) == 6
return got.value.decode()
""",
    ),
    "machine code": _imports(
        "ctypes, mmap", "mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)"
    ),
    "machine code later": _imports(
        "ctypes, mmap",
        _LIBC
        + "page = mmap.mmap(-1, 4096)\nat = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        + "assert libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(4096), 5) == 0",
    ),
}
"""Attempts with the system's own means."""

_GENERATOR = "def _make():\n    yield 1\n"
_CATCH = (
    "def _caught():\n    try:\n        1 / 0\n    except ZeroDivisionError as error:\n        return error\n"
)

WALKS = {
    "a builtin": _walks("open", "`open` is not allowed"),
    "a builtin by import": _walks("__import__('io').open", "`__import__` is not allowed"),
    "the builtins": _walks("__builtins__.open", "`__builtins__` is not allowed"),
    "a class's family": _walks(
        "[c for c in ().__class__.__mro__[1].__subclasses__() if c.__name__ == '_wrap_close'][0]"
        ".__init__.__globals__['fdopen'].__globals__['__builtins__']['open']",
        "the attribute `__globals__` is not allowed",
    ),
    "a function's namespace": _walks(
        "attack.__globals__['__builtins__'].open", "`__globals__` is not allowed"
    ),
    "eval": _walks("eval('open')", "`eval` is not allowed"),
    "exec": _walks("exec('global o; o = open') or o", "`exec` is not allowed", before="o = 1\n"),
    "compile": _walks("eval(compile('open', '', 'eval'))", "is not allowed"),
    "getattr": _walks(
        "getattr(json, 'codecs').builtins.open", "`getattr` is not allowed", before="import json\n"
    ),
    "globals": _walks("globals()['__builtins__'].open", "`globals` is not allowed"),
    "vars": _walks("vars(json)['codecs'].builtins.open", "`vars` is not allowed", before="import json\n"),
    "json's modules": _walks(
        "json.codecs.builtins.open", "`json.codecs` is not allowed", before="import json\n"
    ),
    "json by another name": _walks("j.codecs.builtins.open", "`json.codecs` is", before="import json as j\n"),
    "random's modules": _walks(
        "random._os.fdopen.__globals__['__builtins__']['open']", "is not allowed", before="import random\n"
    ),
    "re's modules": _walks("re.enum.bltns.open", "`re.enum` is not allowed", before="import re\n"),
    "typing's modules": _walks(
        "typing.sys.modules['builtins'].open", "`typing.sys` is not allowed", before="import typing\n"
    ),
    "dataclasses' modules": _walks(
        "dataclasses.builtins.open", "`dataclasses.builtins` is not allowed", before="import dataclasses\n"
    ),
    "enum's modules": _walks("enum.bltns.open", "`enum.bltns` is not allowed", before="import enum\n"),
    "statistics' modules": _walks(
        "statistics.sys.modules['builtins'].open",
        "`statistics.sys` is not allowed",
        before="import statistics\n",
    ),
    "a private name by import": _walks(
        "_os.fdopen.__globals__['__builtins__']['open']",
        "`random._os` is not allowed",
        before="from random import _os\n",
        line=1,
    ),
    "everything by import": _walks(
        "sys.modules['builtins'].open",
        "`typing.*` is not allowed",
        before="from typing import *\nfrom typing import sys\n",
        line=1,
    ),
    "a generator's frame": _walks(
        "_make().gi_frame.f_builtins['open']",
        "is not allowed: such names lead to frames",
        before=_GENERATOR,
    ),
    "a generator's code": _walks(
        "_make().gi_code and open", "such names lead to frames", before="open = open\n" + _GENERATOR
    ),
    "the callers' frames": _walks(
        "_caught().__traceback__.tb_frame.f_back.f_back.f_builtins['open']", "is not allowed", before=_CATCH
    ),
    "a traceback": _walks(
        "_caught().__traceback__.tb_frame.f_builtins['open']", "is not allowed", before=_CATCH
    ),
    "a format": _walks(
        "'{0.__globals__}'.format(attack) and open",
        "the attribute `format` is not allowed",
        before="open = open\n",
    ),
    "a default of a lambda": _walks("(lambda o=open: o)()", "`open` is not allowed"),
    "a decorator": _walks(
        "_gate",
        "`__import__` is not allowed",
        before="@lambda function: __import__('io').open\ndef _gate(): pass\n",
        line=1,
    ),
    "a class body": _walks(
        "_Gate.way", "`open` is not allowed", before="class _Gate:\n    way = open\n", line=2
    ),
    "a metaclass": _walks(
        "_Gate[2]['way']",
        "keyword `metaclass` of a class",
        before="class _Gate(metaclass=lambda *given: given):\n    way = open\n",
        line=1,
    ),
    "a hook": _walks(
        "_Gate().way",
        "`__getattr__` is not allowed",
        before="class _Gate:\n    def __getattr__(self, name): return open\n",
        line=2,
    ),
    "type": _walks("type('Gate', (), {'way': open}).way", "is not allowed"),
    "a pattern": _walks(
        "_see(attack)",
        "`Match` is not allowed",
        before="def _see(one):\n    match one:\n        case object(__globals__=g):\n"
        "            return g['__builtins__'].open\n",
        line=2,
    ),
    "a name of another alphabet": _walks("ｅｖａｌ('ｏｐｅｎ')", "names must consist of ASCII letters"),
    "an async function": _walks(
        "_make().cr_frame.f_builtins['open'] if not close(_make()) else 1",
        "`AsyncFunctionDef` is not allowed",
        before="async def _make():\n    pass\ndef close(one):\n    one.close()\n",
        line=1,
    ),
    "a builtin through a class": _walks(
        "[object, open][1]",
        "`object` is not allowed",
        before="open = open\n",
    ),
}
"""Attempts with the means of the language: each reaches an `open` and makes a file with it."""
