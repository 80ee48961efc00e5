"""Landlock: the kernel lets this process reach the files of a policy only (linux/landlock.h, landlock(7))."""

from __future__ import annotations

import ctypes
import os
import stat
import struct

from kdissect.cli.confinement.policy import Policy
from kdissect.cli.confinement.system_calls import (
    LANDLOCK_ADD_RULE,
    LANDLOCK_CREATE_RULESET,
    LANDLOCK_RESTRICT_SELF,
    call,
    machine,
)

(EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO,
 MAKE_BLOCK, MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV) = (1 << bit for bit in range(16))  # fmt: skip
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Rights that the rule of a file may have; others are for folders."""
READ = READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | TRUNCATE | MAKE_REG | MAKE_DIR | REMOVE_FILE | REMOVE_DIR | REFER
USE = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
HANDLED_BITS = {2: 14, 3: 15, 4: 15}
"""How many of the rights above the kernel knows, by version of its interface; 16 from 5 on."""
OLDEST = 2
"""Version 1 cannot let files move from one folder to another one, as output files do."""
WITH_NETWORK, WITH_SCOPES, WITH_ALL_THREADS = 4, 6, 8
BIND, CONNECT = 1, 2
OF_NETWORK = BIND | CONNECT
ABSTRACT_SOCKETS, SIGNALS = 1, 2
"""Scopes: sockets and processes outside of the sandbox that it cannot reach."""
ASK_VERSION = 1
PATH_BENEATH, NET_PORT = 1, 2
"""Kinds of rules."""
ALL_THREADS = 1 << 3


def landlock_version() -> int:
    """Version of the kernel's interface; 0 where there is none, or too old a one."""
    if machine() is None:
        return 0
    version = call(LANDLOCK_CREATE_RULESET, None, 0, ASK_VERSION)
    return version if version >= OLDEST else 0


def restrict_files(policy: Policy, version: int) -> bool:
    """Closes files off that `policy` does not name, for this thread and for threads and processes that it starts, and
    TCP but for connections to its ports. `version` is that of the interface. Returns whether the kernel did it."""
    handled = (1 << HANDLED_BITS.get(version, 16)) - 1
    scopes = ABSTRACT_SOCKETS | (0 if policy.signals else SIGNALS)
    attributes = struct.pack(
        "QQQ", handled, OF_NETWORK if version >= WITH_NETWORK else 0, scopes if version >= WITH_SCOPES else 0
    )
    size = 8 if version < WITH_NETWORK else 16 if version < WITH_SCOPES else 24
    ruleset = call(LANDLOCK_CREATE_RULESET, ctypes.c_char_p(attributes), size, 0)
    if ruleset < 0:
        return False
    try:
        rules = {
            READ: policy.read, READ_DIR: policy.listed, WRITE: policy.write, USE: policy.devices,
            EXECUTE | READ_FILE: policy.programs,
        }  # fmt: skip
        for rights, paths in rules.items():
            for path in dict.fromkeys(paths):
                _allow(ruleset, path, rights & handled)
        for port in policy.ports if version >= WITH_NETWORK else ():
            call(LANDLOCK_ADD_RULE, ruleset, NET_PORT, ctypes.c_char_p(struct.pack("QQ", CONNECT, port)), 0)
        return call(LANDLOCK_RESTRICT_SELF, ruleset, ALL_THREADS if version >= WITH_ALL_THREADS else 0) == 0
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Adds a rule; none for what does not exist or has no place in a file system (a pipe), which Landlock lets be."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= OF_FILES
        call(LANDLOCK_ADD_RULE, ruleset, PATH_BENEATH, ctypes.c_char_p(struct.pack("=Qi", rights, place)), 0)
    finally:
        os.close(place)
