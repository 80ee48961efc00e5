"""seccomp: the kernel refuses system calls that reading captures has no use for (seccomp(2), linux/filter.h)."""

from __future__ import annotations

import ctypes
import errno
import struct

from kdissect.cli.confinement.system_calls import (
    AF_INET,
    AF_INET6,
    CLIENT_CALLS,
    CLONE,
    CLONE3,
    EXEC,
    IOCTL,
    MEMFD_CREATE,
    MFD_NOEXEC_SEAL,
    NEW_NAMESPACES,
    OTHER_SOCKETS,
    REFUSED,
    SECCOMP,
    SOCK_DGRAM,
    SOCK_STREAM,
    SOCKET,
    TO_TERMINALS,
    Machine,
    call,
    machine,
)

SET_MODE_FILTER, ALL_THREADS = 1, 1
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions: BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ, BPF_JGE, BPF_JSET, BPF_RET."""
NUMBER_AT, ARCH_AT, ARGUMENTS_AT = 0, 4, 16
"""Places in struct seccomp_data."""
ALLOW, FAIL = 0x7FFF0000, 0x00050000
X32 = 0x40000000
"""Bit of the numbers of the x32 interface, which has all calls once more."""
Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""


def refuse_calls(programs: bool, connects: bool = False) -> bool:
    """Refuses REFUSED in all threads of this process, and in processes that it starts, with EPERM. `programs`: execve
    is left to Landlock, and files in memory can be made only if they can never be run. `connects`: TCP and UDP sockets
    may connect. Returns whether it was done."""
    known = machine()
    if known is None:
        return False
    code = b"".join(struct.pack("HBBI", *one) for one in filter_program(known, programs, connects))
    memory = ctypes.create_string_buffer(code)
    described = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(memory))
    return call(SECCOMP[known.column], SET_MODE_FILTER, ALL_THREADS, ctypes.c_char_p(described)) == 0


def filter_program(machine: Machine, programs: bool, connects: bool = False) -> list[Instruction]:
    """The instructions of the filter."""
    column = machine.column
    refused = {**REFUSED, **EXEC}
    for name in (*(("execve",) if programs else ()), *(CLIENT_CALLS if connects else ())):
        del refused[name]
    numbers = sorted(number for pair in refused.values() if (number := pair[column]) is not None)
    refuse: Instruction = (RETURN, 0, 0, FAIL | errno.EPERM)
    unknown: Instruction = (RETURN, 0, 0, FAIL | errno.ENOSYS)
    program: list[Instruction] = [(LOAD, 0, 0, ARCH_AT), (EQUAL, 1, 0, machine.arch), refuse]
    program += [(LOAD, 0, 0, NUMBER_AT), (AT_LEAST, 0, 1, X32), unknown]
    for number in numbers:
        program += [(EQUAL, 0, 1, number), refuse]
    # The flags of clone3 lie behind a pointer. The C library takes clone where there is no clone3.
    program += [(EQUAL, 0, 1, CLONE3[column]), unknown]
    program += [(EQUAL, 0, 3, CLONE[column]), _argument(0), (ANY_BIT, 0, 1, NEW_NAMESPACES), refuse]
    program += [(LOAD, 0, 0, NUMBER_AT)]
    program += [(EQUAL, 0, 4, IOCTL[column]), _argument(1)]
    program += [(EQUAL, 1, 0, TO_TERMINALS[0]), (EQUAL, 0, 1, TO_TERMINALS[1]), refuse, (LOAD, 0, 0, NUMBER_AT)]
    if connects:  # no packet sockets, and no sockets of this host's services
        program += [
            (EQUAL, 0, 10, SOCKET[column]),
            _argument(0),
            (EQUAL, 2, 0, AF_INET),
            (EQUAL, 1, 0, AF_INET6),
            refuse,
        ]
        program += [_argument(1), (ANY_BIT, 2, 0, OTHER_SOCKETS), (ANY_BIT, 0, 2, SOCK_STREAM)]
        program += [(ANY_BIT, 0, 1, SOCK_DGRAM), refuse, (LOAD, 0, 0, NUMBER_AT)]
    if programs:
        program += [(EQUAL, 0, 3, MEMFD_CREATE[column]), _argument(1), (ANY_BIT, 1, 0, MFD_NOEXEC_SEAL), refuse]
    return [*program, (RETURN, 0, 0, ALLOW)]


def _argument(index: int) -> Instruction:
    """Loads the lower half of an argument; processors that are known here have it first."""
    return LOAD, 0, 0, ARGUMENTS_AT + 8 * index
