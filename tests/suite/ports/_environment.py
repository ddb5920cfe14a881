"""The C library's floating-point environment, which belongs to the thread and not to a port."""

import ctypes
import platform

C = ctypes.CDLL(None)
ARM = platform.machine() in ("aarch64", "arm64")
UPWARD = 0x400000 if ARM else 0x800


def environment():
    """A copy of this thread's environment, for `restore`."""
    state = (ctypes.c_uint32 * 8)()
    C.fegetenv(state)
    return state


def restore(state):
    C.fesetenv(state)


def round_upward():
    """Leaves the thread rounding every result upward."""
    C.fesetround(UPWARD)


def flush_subnormals():
    """Leaves the thread taking subnormal operands and results for 0 (Linux)."""
    state = environment()
    if ARM:
        state[0] |= 1 << 24
    else:
        state[7] |= 0x8040
    restore(state)
