"""firewall.py: what stands between clients and brokers: it forwards, and does what it is told on standard input.

    firewall.py LISTEN=TARGET...        (addresses as host:port)

`reset` ends every connection by a reset to both sides and goes on accepting; `unread` reads nothing more of the brokers
(its receive window closes); `swallow` reads of both sides and forwards nothing; `forward` forwards again. Each command
is answered by a line with the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import time

BUFFER = 32 << 10
"""Receive buffer in bytes towards the broker: the window closes soon after reading stops."""


class Firewall:
    def __init__(self) -> None:
        self.sockets: set[socket.socket] = set()
        self.ways: set[asyncio.Task[None]] = set()
        self.reads = {"broker": asyncio.Event(), "client": asyncio.Event()}
        self.forwards = True
        self.set("forward")

    def set(self, command: str) -> None:
        self.forwards = command != "swallow"
        self.reads["client"].set()
        if command == "unread":
            self.reads["broker"].clear()
        else:
            self.reads["broker"].set()

    async def reset(self) -> None:
        """Nobody may wait for a socket when it is closed: its number is the next connection's."""
        for one in self.ways:
            one.cancel()
        await asyncio.gather(*self.ways, return_exceptions=True)
        await asyncio.sleep(0)
        for one in self.sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
        self.sockets.clear()

    async def accept(self, listen: str, target: str) -> None:
        loop = asyncio.get_running_loop()
        door = socket.create_server(address(listen), backlog=64)
        door.setblocking(False)
        while True:
            near, _ = await loop.sock_accept(door)
            far = socket.socket()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            for one in (near, far):
                one.setblocking(False)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                await loop.sock_connect(far, address(target))
            except OSError:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                near.close()
                continue
            self.sockets |= {near, far}
            for way in (self.carry(near, far, "client"), self.carry(far, near, "broker")):
                task = loop.create_task(way)
                self.ways.add(task)
                task.add_done_callback(self.ways.discard)

    async def carry(self, source: socket.socket, sink: socket.socket, side: str) -> None:
        """What one side sends, until it ends; then the other side is told so."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while True:
                await self.reads[side].wait()
                data = await loop.sock_recv(source, 16 << 10)
                if not data:
                    break
                if self.forwards:
                    await loop.sock_sendall(sink, data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def address(text: str) -> tuple[str, int]:
    host, port = text.rsplit(":", 1)
    return host, int(port)


async def main() -> None:
    firewall = Firewall()
    loop = asyncio.get_running_loop()
    doors = [loop.create_task(firewall.accept(*pair.split("="))) for pair in sys.argv[1:]]
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        command = line.decode().strip()
        at = time.time()
        await firewall.reset() if command == "reset" else firewall.set(command)
        print(command, at, flush=True)
    for door in doors:
        door.cancel()


if __name__ == "__main__":
    asyncio.run(main())
