"""Ports that misbehave, as bodies of a function, and what has to become of each.

They serve the tests of the worker and those of whole checks: whatever a port does, the case in
which it does so gets a status, the next one works, and nothing is left running.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

MARK = "QKVAC_TEST_MARK"

PRELUDE = """
import ctypes, os, signal, subprocess, sys, threading, time
import numpy as np

def good(X, Wq, Wk, Wv):
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    S = Q @ K.T / np.sqrt(Q.shape[1]).astype(X.dtype)
    E = np.exp(S - S.max(axis=1, keepdims=True))
    A = E / E.sum(axis=1, keepdims=True)
    return Q, K, V, A, A @ V
"""


def marked(mark: str) -> list[int]:
    """Living processes that were started with a mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
            if mark.encode() in path.read_bytes() and state != "Z":
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def outlived(mark: str, seconds: float = 5.0) -> list[int]:
    """Marked processes that are there after some seconds: whoever was killed takes time to go."""
    deadline = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def bad(body: str) -> str:
    """A port that misbehaves when it is called with one token, and only then."""
    return (
        "def attention(X, Wq, Wk, Wv):\n"
        "    if len(X) == 1:\n"
        f"{textwrap.indent(textwrap.dedent(body).strip(), ' ' * 8)}\n"
        "    return good(X, Wq, Wk, Wv)\n"
    )


HOSTILE: Mapping[str, tuple[str, str, str, int]] = {
    "raises": ("raise ValueError('a\\nb')", "error", r"ValueError: a$", 1),
    "asserts": ("assert X is None", "error", r"AssertionError$", 1),
    "refuses": ("raise NotImplementedError('no single token')", "unsupported", r"^no single t", 1),
    "refuses-silently": ("raise NotImplementedError", "unsupported", r"NotImplementedError", 1),
    "exits": ("sys.exit(0)", "error", r"SystemExit: 0", 1),
    "interrupts": ("raise KeyboardInterrupt", "error", r"KeyboardInterrupt", 1),
    "recurses": ("attention(X, Wq, Wk, Wv)", "error", r"RecursionError", 1),
    "lowers-recursion": ("sys.setrecursionlimit(60); 1 / 0", "error", r"ZeroDivisionError", 1),
    "rude-exception": (
        "class Rude(Exception):\n    def __str__(self): raise Exception\nraise Rude",
        "error",
        r"^Rude$",
        1,
    ),
    "wrong-signature": ("good(X)", "error", r"TypeError: good\(\) missing 3", 1),
    "no-array": ("return 'five'", "error", r"C is a str, not an array", 1),
    "generator": ("return (x for x in X)", "error", r"C is a generator", 1),
    "wrong-length": ("return X, X", "error", r"a tuple of 2; expected 5", 1),
    "unknown-key": ("return {'c': X}", "error", r"unknown quantity 'c'; did you mean 'C'", 1),
    "objects": ("return np.array([None])", "error", r"C is .* of dtype object", 1),
    "memory-error": ("raise MemoryError", "error", r"^out of memory", 1),
    "terabyte": ("np.ones(1 << 37)", "error", r"^out of memory: .*TiB", 1),
    "bad-alloc": (
        "os.write(2, b\"terminate called after throwing 'std::bad_alloc'\"); os.abort()",
        "error",
        r"^out of memory: killed by SIGABRT",
        2,
    ),
    "segfault": ("ctypes.string_at(0)", "crash", r"killed by SIGSEGV in attention \(port0.py", 2),
    "abort": ("os.abort()", "crash", r"killed by SIGABRT in attention \(port0.py, line 13\)", 2),
    "kill": ("os.kill(os.getpid(), signal.SIGKILL)", "crash", r"SIGKILL \(the system may be", 2),
    "kill-group": ("os.killpg(0, signal.SIGTERM)", "crash", r"killed by SIGTERM", 2),
    "leaves-quietly": ("os._exit(0)", "crash", r"left with exit status 0", 2),
    "leaves-loudly": ("print('why', flush=True); os._exit(3)", "crash", r"exit status 3", 2),
    "stack-overflow": (
        "sys.setrecursionlimit(1 << 30)\n"
        "class Deep:\n    def __getattr__(self, name): return getattr(self, name + '')\nDeep().x",
        "(crash|error)",
        r"SIGSEGV|RecursionError|memory",
        2,
    ),
    "hangs": ("while True: pass", "timeout", r"within 1 s, hung in attention \(port0.py", 2),
    "sleeps": ("time.sleep(60)", "timeout", r"within 1 s, hung in attention", 2),
    "hangs-in-c": ("ctypes.CDLL(None).pause()", "timeout", r"hung in attention", 2),
    "hangs-deaf": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
        "timeout",
        r"within 1 s$",
        2,
    ),
    "stops": ("os.kill(os.getpid(), signal.SIGSTOP)", "timeout", r"within 1 s", 2),
    "prints-for-ever": ("while True: print('quack' * 1000)", "timeout", r"within 1 s, hung", 2),
    "closes-everything": ("os.closerange(0, 256)", "crash", r"own pipe was closed", 2),
    "replaces-pipes": (
        "null = os.open('/dev/null', os.O_RDWR)\n"
        "for fd in range(3, 200):\n    if fd != null: os.dup2(null, fd)",
        "crash",
        r"own pipe was closed",
        2,
    ),
    "writes-to-pipes": (
        "for fd in range(3, 200):\n    try: os.write(fd, b'quack' * 9)\n    except OSError: pass",
        "crash",
        r"wrote to the worker's own pipe",
        2,
    ),
    "forges-an-answer": (
        "from qkvac.isolation.protocol import Message, frames\n"
        "for fd in range(3, 200):\n"
        "    try: os.write(fd, b''.join(frames(Message({'ok': True, 'id': 2}))))\n"
        "    except OSError: pass",
        "crash",
        r"malformed|answered another",
        2,
    ),
    "exhausts-memory": (
        "held = []\nwhile True: held.append(bytearray(1 << 26))",
        "(error|crash)",
        r"^out of memory|killed by",
        2,
    ),
    "patches-builtins": (
        "import builtins\nbuiltins.len = builtins.isinstance = None",
        "(error|crash)",
        r"'NoneType' object is not callable|exit status|answer",
        2,
    ),
    "alarms": ("signal.alarm(1); time.sleep(5)", "crash", r"killed by SIGALRM", 2),
    "forbids-files": (
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))\nopen('/dev/null')",
        "error",
        r"Too many open files|OSError",
        2,
    ),
    "freed-memory": (
        "import mmap\nblock = mmap.mmap(-1, 1 << 16)\n"
        "C = np.frombuffer(block, X.dtype)[:3].reshape(1, 3)\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.munmap(ctypes.c_void_p(C.ctypes.data), ctypes.c_size_t(1 << 16))\n"
        "return C",
        "crash",
        r"killed by SIG(SEGV|BUS)",
        2,
    ),
    "array-raises": (
        "class Lazy:\n"
        "    def __array__(self, *a, **k): raise RuntimeError('was freed')\n"
        "return Lazy()",
        "error",
        r"C is a Lazy .*RuntimeError: was freed",
        1,
    ),
    "attributes-raise": (
        "class Rude:\n    def __getattribute__(self, name): raise OSError(name)\nreturn Rude()",
        "error",
        r"OSError|Rude",
        1,
    ),
    "dlpack-exits": (
        "class Exits:\n    def __dlpack__(self, *a, **k): sys.exit(5)\n"
        "    __array__ = __dlpack_device__ = __dlpack__\nreturn Exits()",
        "error",
        r"SystemExit|Exits",
        1,
    ),
    "items-raise": (
        "class Table(dict):\n    def items(self): raise KeyError('no')\n"
        "    keys = __iter__ = __len__ = items\nreturn Table(C=X)",
        "error",
        r"KeyError",
        1,
    ),
    "endless-tuple": (
        "class Endless(tuple):\n    def __iter__(self):\n        while True: yield X\n"
        "    def __len__(self): return 5\nreturn Endless()",
        "(timeout|error)",
        r"within 1 s|out of memory|longer than",
        2,
    ),
    "array-subclass-raises": (
        "class Sub(np.ndarray):\n"
        "    def copy(self, *a, **k): raise RuntimeError('no copies')\n"
        "    tobytes = __array_finalize__ = copy\n"
        "return X.view(Sub)",
        "error",
        r"RuntimeError: no copies",
        1,
    ),
}
"""Name → body, status and reason as patterns, and how many processes that may take."""

HARMLESS: Mapping[str, str] = {
    "prints": "print('quack'); print('quack', file=sys.stderr)",
    "prints-binary": "os.write(1, bytes(range(256)) * 64); os.write(2, b'\\xff\\x00')",
    "prints-megabytes": "sys.stdout.write('quack' * 1_000_000)",
    "reads-input": "assert sys.stdin.read() == ''",
    "closes-output": "os.closerange(1, 3)",
    "replaces-output": "sys.stdout = sys.stderr = None",
    "deletes-output": "vars(sys).pop('stdout', None)",
    "starts-a-thread": "threading.Thread(target=time.sleep, args=(60,)).start()",
    "starts-a-child": "subprocess.Popen(['sleep', '60'])",
    "forks": "if os.fork() == 0: time.sleep(60)",
    "forks-and-returns-twice": "os.fork()",
    "starts-a-daemon": (
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: time.sleep(60)\n"
        "    os._exit(0)"
    ),
    "ignores-signals": "for s in (2, 15): signal.signal(s, signal.SIG_IGN)",
    "changes-folder": "os.chdir('/')",
    "patches-numpy": (
        "for f in ('asarray', 'ascontiguousarray', 'array_equal', 'shares_memory', 'copy'):\n"
        "    setattr(np, f, None)\ntime.perf_counter = None"
    ),
    "clears-modules": "for m in list(sys.modules): m.startswith('qkvac') and sys.modules.pop(m)",
    "changes-environment-variables": "os.environ.clear()",
    "leaves-an-exit-handler": "import atexit; atexit.register(time.sleep, 60)",
    "makes-warnings-errors": "import warnings; warnings.simplefilter('error')",
    "traces": "sys.settrace(lambda *a: None); sys.setprofile(lambda *a: None)",
}
"""Name → body of what a port may do besides answering, without harm to any case."""
