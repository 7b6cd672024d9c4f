"""A simulated cable between a host and its switch, which delays every frame in both directions.

    cable.py DEVICE BRIDGE SECONDS

`DEVICE` is the switch's end of the cable. It leaves `BRIDGE` while this program runs; a tap device takes its place, and
this program carries frames between the two. It prints "ready", and ends when its standard input is closed. The kernel's
own tool, `tc qdisc ... netem`, is missing in kernels made for virtual machines.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque

# From linux/if_tun.h and linux/if_packet.h.
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_TAP, _NO_PACKET_INFORMATION, _HEADERS = 0x0002, 0x1000, 0x4000
_CHECKSUM, _TCP4, _TCP6 = 0x01, 0x02, 0x04
_SOL_PACKET, _IGNORE_OUTGOING, _VNET_HEADER = 263, 23, 15
_ALL_PROTOCOLS = 3
_LARGEST = 10 + 14 + 65536  # bytes: a header of virtio_net, which describes offloaded work of a frame, and a frame


def main() -> None:
    device, bridge, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    end, tap = _end_of(device), _tap(f"{device}-far")
    _ip("link", "set", "dev", device, "nomaster")
    _ip("link", "set", "dev", f"{device}-far", "master", bridge, "up")
    try:
        print("ready", flush=True)
        _carry(end.fileno(), tap, seconds)
    finally:
        os.close(tap)  # closing it removes the device
        _ip("link", "set", "dev", device, "master", bridge)


def _end_of(device: str) -> socket.socket:
    """Open a socket that receives from and sends to a device, with headers of virtio_net."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    end.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
    end.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**24)
    end.bind((device, _ALL_PROTOCOLS))
    end.setblocking(False)
    return end


def _tap(name: str) -> int:
    """Make a network device whose frames this process carries, with the same headers."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP | _NO_PACKET_INFORMATION | _HEADERS))
    fcntl.ioctl(tap, _TUNSETOFFLOAD, _CHECKSUM | _TCP4 | _TCP6)
    return tap


def _carry(one: int, other: int, seconds: float) -> None:
    """Carry frames between two descriptors with a delay, until standard input is closed. Frames in flight are delivered
    then.
    """
    to = {one: other, other: one}
    under_way: deque[tuple[float, int, bytes]] = deque()
    ended = False
    while not ended:
        wait = max(under_way[0][0] - time.monotonic(), 0) if under_way else None
        ready, _, _ = select.select([0, one, other], [], [], wait)
        ended = 0 in ready and not os.read(0, 1)
        for source, target in to.items():
            if source in ready:
                under_way.append((time.monotonic() + seconds, target, os.read(source, _LARGEST)))
        while under_way and (ended or under_way[0][0] <= time.monotonic()):
            _, there, frame = under_way.popleft()
            try:
                os.write(there, frame)
            except OSError:
                continue  # the device is down, or its queue is full: the frame is lost, as on any cable


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


if __name__ == "__main__":
    main()
