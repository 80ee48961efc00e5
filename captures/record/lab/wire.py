"""wire.py: a cable between two network namespaces, in user space; it does what it is told on standard input.

    wire.py PID        (PID: a process in the clients' namespace; this one runs in the brokers')

TAP devices `lab0` (here) and `lab1` (there) exist already. Orders: `delay UP_MS DOWN_MS`, `loss UP DOWN` (shares of IP
packets), `cut up|down|both` (nothing passes), `join` (everything passes again), `big BYTES` (no longer frame passes),
`rate BYTES` (so many a second, down). Up is from a client to a broker. Each order is answered by a line with the time.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import selectors
import struct
import sys
import time

TUNSETIFF, TAP_WITHOUT_HEADER = 0x400454CA, 0x1002
IPV4 = b"\x08\x00"
FRAME = 65535


def tap(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP_WITHOUT_HEADER))
    return device


def main() -> None:
    random.seed(5)
    here = tap("lab0")
    with open(f"/proc/{sys.argv[1]}/ns/net") as there_:
        assert ctypes.CDLL(None, use_errno=True).setns(there_.fileno(), 0) == 0
    there = tap("lab1")
    delay, loss, cut = {here: 0.0, there: 0.0}, {here: 0.0, there: 0.0}, {here: False, there: False}
    last = {here: 0.0, there: 0.0}
    waiting: list[tuple[float, int, int, bytes]] = []
    number, longest, rate = 0, FRAME, 0.0
    ways = selectors.DefaultSelector()
    for one in (here, there, 0):
        ways.register(one, selectors.EVENT_READ)
    print("ready", time.time(), flush=True)
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for key, _ in ways.select(pause):
            if key.fd == 0:
                words = os.read(0, 1000).decode().split()
                if not words:
                    return
                if words[0] == "delay":
                    delay[there], delay[here] = (float(word) / 1000 for word in words[1:])
                elif words[0] == "loss":
                    loss[there], loss[here] = map(float, words[1:])
                elif words[0] == "big":
                    longest = int(words[1])
                elif words[0] == "rate":
                    rate = float(words[1])
                else:
                    cut[there] = words[1:] in (["up"], ["both"])
                    cut[here] = words[1:] in (["down"], ["both"])
                print(words[0], time.time(), flush=True)
                continue
            while True:
                try:
                    frame = os.read(key.fd, FRAME)
                except OSError:
                    break
                if frame[12:14] == IPV4 and (cut[key.fd] or len(frame) > longest or random.random() < loss[key.fd]):
                    continue
                sink = here if key.fd == there else there
                takes = len(frame) / rate if rate and sink == there else 1e-6
                last[sink] = at = max(time.monotonic() + delay[key.fd], last[sink] + takes)
                heapq.heappush(waiting, (at, number, sink, frame))
                number += 1
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, sink, frame = heapq.heappop(waiting)
            try:
                os.write(sink, frame)
            except OSError:
                continue


if __name__ == "__main__":
    main()
