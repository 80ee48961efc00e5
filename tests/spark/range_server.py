"""A server of files that answers as S3 does to those who read one object: HEAD, and GET of a range. It counts requests.

moto's server copies a whole object for each range of it, which takes a second for a gigabyte.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """The server's address while it runs, and the bytes of each GET so far. Buckets are the folders in `folder`."""
    gets: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(send=False)

        def do_GET(self) -> None:
            self._answer(send=True)

        def _answer(self, send: bool) -> None:
            path = folder / self.path.partition("?")[0].lstrip("/")
            if not path.is_file():
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            size = path.stat().st_size
            begin, end = 0, size
            if wanted := self.headers.get("Range"):
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                begin, end = int(first), min(int(last) + 1, size)
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(end - begin))
            self.send_header("Content-Type", "binary/octet-stream")
            self.send_header("Last-Modified", formatdate(path.stat().st_mtime, usegmt=True))
            if wanted:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
            self.end_headers()
            if send:
                gets.append(end - begin)
                with path.open("rb") as file:
                    file.seek(begin)
                    self.wfile.write(file.read(end - begin))

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", gets
    finally:
        server.shutdown()
        server.server_close()
