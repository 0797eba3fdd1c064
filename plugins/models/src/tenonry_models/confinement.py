"""Drops rights of the running process that are not needed to read a file: network, new programs, privileges. Child
process.

On Linux an unprivileged process can drop each of these permanently. Restrictions that the system does not support are
skipped, and `confine` returns the active ones.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
# Classic BPF (linux/filter.h) and what a seccomp filter may answer (linux/seccomp.h).
LOAD_WORD = 0x20
JUMP_IF_EQUAL = 0x15
JUMP_IF_AT_LEAST = 0x35
RETURN = 0x06
ALLOW = 0x7FFF0000
DENY = 0x00050000 | 1  # the call fails with EPERM
NUMBER_OFFSET = 0
ARCHITECTURE_OFFSET = 4
X32 = 0x40000000  # numbers above belong to another table of calls
# Per machine: audit architecture, and the numbers of socket, socketpair, connect, bind, sendto, sendmsg, execve,
# execveat, ptrace, process_vm_writev, unshare, setns, io_uring_setup, clone, clone3, and fork and
# vfork where there are such.
CALLS: dict[str, tuple[int, tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        (41, 53, 42, 49, 44, 46, 59, 322, 101, 311, 272, 308, 425, 56, 435, 57, 58),
    ),
    "aarch64": (
        0xC00000B7,
        (198, 199, 203, 200, 206, 211, 221, 281, 117, 271, 97, 268, 425, 220, 435),
    ),
}


def leave_network() -> bool:
    """Move into a private network without an active interface; returns True if the system permitted it.

    Requires a process with a single thread, so this runs before libraries that start threads.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0)


def forbid_calls() -> bool:
    """From here on sockets, new programs, processes and threads fail with EPERM; whether the system allowed it."""
    if not sys.platform.startswith("linux") or platform.machine() not in CALLS:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    program = _filter(*CALLS[platform.machine()])
    code = ctypes.create_string_buffer(program, len(program))
    count = len(program) // 8
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", count, ctypes.addressof(code)))
    return bool(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0) == 0)


def _filter(architecture: int, denied: tuple[int, ...]) -> bytes:
    """Other architectures and the x32 table are denied whole; of this one, the given numbers."""
    total = len(denied)
    steps = [
        (LOAD_WORD, 0, 0, ARCHITECTURE_OFFSET),
        (JUMP_IF_EQUAL, 0, total + 3, architecture),
        (LOAD_WORD, 0, 0, NUMBER_OFFSET),
        (JUMP_IF_AT_LEAST, total + 1, 0, X32),
    ]
    steps += [(JUMP_IF_EQUAL, total - place, 0, number) for place, number in enumerate(denied)]
    steps += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, DENY)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def limit(max_file_bytes: int, max_memory_bytes: int) -> None:
    """Forbid core files and new processes or threads (root may start some: see `forbid_calls`); bound the size of
    written files and of further allocations.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
    if sys.platform.startswith("linux"):
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - pathlib is one import more
            pages = int(file.read().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + max_memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
