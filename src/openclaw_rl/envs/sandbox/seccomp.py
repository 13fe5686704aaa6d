"""The system calls that a program in the sandbox is refused, as a seccomp filter.

Namespaces and limits leave these open: memory that no limit counts (System V, message queues, files in memory), sockets
that no network namespace holds back, namespaces of one's own, keys, and the parts of the kernel that break most often.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from openclaw_rl.errors import NoSandbox

_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_NEW_NAMESPACE = 0x7E020000
"""every flag of clone() that makes a namespace"""
_FOREIGN = 0x40000000
"""from here on x86-64 has the calls of a second set, which would pass under other numbers"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """The numbers of one architecture."""

    audit: int
    clone: int
    refused: dict[str, int]


_SAME = {"io_uring_setup": 425, "memfd_secret": 447}
_MACHINES = {
    "x86_64": _Machine(
        audit=0xC000003E,
        clone=56,
        refused={
            **_SAME,
            **{"socket": 41, "unshare": 272, "setns": 308, "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240},
            **{"memfd_create": 319, "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321, "ptrace": 101},
            **{"perf_event_open": 298, "userfaultfd": 323, "process_vm_readv": 310, "process_vm_writev": 311},
        },
    ),
    "aarch64": _Machine(
        audit=0xC00000B7,
        clone=220,
        refused={
            **_SAME,
            **{"socket": 198, "unshare": 97, "setns": 268, "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180},
            **{"memfd_create": 279, "add_key": 217, "request_key": 218, "keyctl": 219, "bpf": 280, "ptrace": 117},
            **{"perf_event_open": 241, "userfaultfd": 282, "process_vm_readv": 270, "process_vm_writev": 271},
        },
    ),
}
_KEPT_APART = (1, 2, 10, 16)
"""families of sockets that have nothing of the host's: local, IPv4, IPv6, netlink"""
_CLONE3 = 435
"""keeps its flags where a filter cannot look; told that it does not exist, the C library takes clone()"""


def program(machine: str = platform.machine(), *, sockets: bool = False) -> bytes:
    """The filter for this processor. Raises NoSandbox where the numbers of its calls are not known.

    ``sockets`` lets those be opened that a network of one's own holds back.
    """
    known = _MACHINES.get(machine)
    if known is None:
        raise NoSandbox(f"the sandbox knows the system calls of {' and '.join(_MACHINES)}, not those of {machine}")
    return b"".join(struct.pack("=HBBI", *one) for one in _instructions(known, sockets=sockets))


def _instructions(machine: _Machine, *, sockets: bool) -> Iterator[tuple[int, int, int, int]]:
    """(operation, jump if true, jump if false, operand)"""
    yield _LOAD, 0, 0, _ARCHITECTURE
    yield _EQUAL, 1, 0, machine.audit
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, _NUMBER
    yield _AT_LEAST, 0, 1, _FOREIGN
    yield _RETURN, 0, 0, _KILL
    for name, number in machine.refused.items():
        if name != "socket" or not sockets:
            yield _EQUAL, 0, 1, number
            yield _RETURN, 0, 0, _FAIL | errno.EPERM
    yield _EQUAL, 0, 1, _CLONE3
    yield _RETURN, 0, 0, _FAIL | errno.ENOSYS
    yield _EQUAL, 0, 3, machine.clone
    yield _LOAD, 0, 0, _FIRST_ARGUMENT
    yield _ANY_BIT, 0, 1, _NEW_NAMESPACE
    yield _RETURN, 0, 0, _FAIL | errno.EPERM
    if sockets:
        yield from _some_sockets(machine.refused["socket"])
    yield _RETURN, 0, 0, _ALLOW


def _some_sockets(number: int) -> Iterator[tuple[int, int, int, int]]:
    """Of a socket only the families that a network namespace keeps apart."""
    yield _LOAD, 0, 0, _NUMBER
    yield _EQUAL, 0, len(_KEPT_APART) + 2, number
    yield _LOAD, 0, 0, _FIRST_ARGUMENT
    for left, family in zip(range(len(_KEPT_APART), 0, -1), _KEPT_APART, strict=True):
        yield _EQUAL, left, 0, family
    yield _RETURN, 0, 0, _FAIL | errno.EPERM
