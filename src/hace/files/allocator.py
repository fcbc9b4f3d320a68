"""How the C library hands freed memory back, for commands that run models on a CPU."""

from __future__ import annotations

import ctypes
import os
import platform

SWITCH = "HACE_KEEP_MEMORY"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def keep_freed_memory() -> bool:
    """Keep memory that tensors free for the next ones, in this process; whether that was possible.

    By default glibc maps every large tensor anew and unmaps it when it is freed, so that the system clears each of its pages
    again: most of the time that a small model takes on a CPU. Memory that is kept is reused as it is, and results have the same
    bits. The price is that the process holds the most it ever used. Only commands that run models ask for it; the library never
    does, since the allocator belongs to whoever owns the process. HACE_KEEP_MEMORY=0 leaves the allocator as it is.
    """
    if os.environ.get(SWITCH, "1") == "0" or platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 1 << 30)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))
