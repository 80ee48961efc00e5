"""System calls that Python has no function for, and the numbers of those that the sandbox refuses.

Sources: the tables of the kernel (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h).
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, NamedTuple


class Machine(NamedTuple):
    """Numbers that differ between processors."""

    column: int
    """Of the pairs of numbers below."""
    arch: int
    """AUDIT_ARCH_* of linux/audit.h."""


MACHINES = {"x86_64": Machine(0, 0xC000003E), "aarch64": Machine(1, 0xC00000B7)}
Numbers = dict[str, tuple[int | None, int | None]]
"""Names of system calls with their numbers on x86-64 and arm64; None where there is no such call."""

LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
SECCOMP = (317, 277)
PR_SET_NO_NEW_PRIVS = 38

EXEC: Numbers = {"execve": (59, 221), "execveat": (322, 281)}
MEMFD_CREATE = (319, 279)
MFD_NOEXEC_SEAL = 0x8
"""Flag of memfd_create(2): the file can never be run. Linux 6.3 and later."""
CLIENT_CALLS = ("socket", "connect")
"""Those of REFUSED that a client of a network needs."""
SOCKET = (41, 198)
AF_INET, AF_INET6 = 2, 10
SOCK_STREAM, SOCK_DGRAM = 1, 2
"""Kinds of sockets of linux/net.h; SOCK_RAW is both bits."""
OTHER_SOCKETS = 0xC
"""Bits of all further kinds."""
REFUSED: Numbers = {
    # New sockets. A pair of connected ones (socketpair) leads nowhere else; accept needs one that listens already.
    "socket": SOCKET, "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    # Other processes.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "tkill": (200, 130),
    # Namespaces and mounts.
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268),
    # The system.
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "quotactl": (179, 60), "acct": (163, 89),
    "syslog": (103, 116), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "sethostname": (170, 161), "personality": (135, 92), "modify_ldt": (154, None), "iopl": (172, None),
    "ioperm": (173, None),
    # Large parts of the kernel that hostile programs use and Python does not.
    "bpf": (321, 280), "perf_event_open": (298, 241), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "userfaultfd": (323, 282), "open_by_handle_at": (304, 265),
    # Modes, owners, attributes and times of files known by a path, which Landlock does not ask about.
    "chmod": (90, None), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None), "lchown": (94, None),
    "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "utime": (132, None), "utimes": (235, None), "utimensat": (280, 88),
    "futimesat": (261, None), "mknod": (133, None), "mknodat": (259, 33),
}  # fmt: skip
CLONE, CLONE3, IOCTL = (56, 220), (435, 435), (16, 29)
NEW_NAMESPACES = 0x7E020000
"""CLONE_NEW* of linux/sched.h."""
TO_TERMINALS = (0x5412, 0x541C)
"""Commands of ioctl(2): TIOCSTI types into the terminal, TIOCLINUX pastes into a console."""

_LIBRARY = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def machine() -> Machine | None:
    """This processor; None where its numbers are not known, or the system is not Linux."""
    if _LIBRARY is None or sys.maxsize < 1 << 32:
        return None
    return MACHINES.get(os.uname().machine)


def call(number: int, *arguments: Any) -> int:
    """Does a system call; returns its result, or the negated error number."""
    assert _LIBRARY is not None
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = int(_LIBRARY.syscall(ctypes.c_long(number), *given))
    return result if result >= 0 else -ctypes.get_errno()


def forbid_new_privileges() -> bool:
    """Makes programs with set-user-id or capabilities run without them, from now on; a sandbox needs that."""
    return _LIBRARY is not None and _LIBRARY.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
