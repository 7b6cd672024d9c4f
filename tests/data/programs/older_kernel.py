"""Runs a command without the system calls that are newer than Linux 5.0: older_kernel.py COMMAND …

These calls fail as on a kernel that lacks them, or as in a container that permits only known calls.
"""

import ctypes
import os
import struct
import sys

PIDFD_SEND_SIGNAL, PIDFD_OPEN, PIDFD_GETFD = 424, 434, 438
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
ALLOW, FAIL, ENOSYS = 0x7FFF0000, 0x00050000, 38
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06


def instruction(code: int, value: int, unless: int = 0) -> bytes:
    return struct.pack("HBBI", code, 0, unless, value)


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


instructions = [instruction(LOAD, 0)]  # the number of the system call
for number in (PIDFD_SEND_SIGNAL, PIDFD_OPEN, PIDFD_GETFD):
    instructions += [instruction(JUMP_IF_EQUAL, number, unless=1), instruction(RETURN, FAIL | ENOSYS)]
instructions.append(instruction(RETURN, ALLOW))
program = ctypes.create_string_buffer(b"".join(instructions))
libc = ctypes.CDLL(None, use_errno=True)
for arguments in (
    (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
    (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(Filter(len(instructions), ctypes.addressof(program)))),
):
    if libc.prctl(*arguments) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
os.execvp(sys.argv[1], sys.argv[1:])
