"""A server of files that answers as S3 does to those who read: HEAD, GET of a range, ListObjectsV2. It counts requests.

moto's server copies a whole object for each range of it, which takes a second for a gigabyte.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs


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
            place, _, query = self.path.partition("?")
            path = folder / place.lstrip("/")
            asked = parse_qs(query)
            if "list-type" in asked:
                self._list(path, asked.get("prefix", [""])[0])
                return
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

        def _list(self, bucket: Path, prefix: str) -> None:
            listed = ""
            for path in sorted(bucket.rglob("*")):
                key, found = path.relative_to(bucket).as_posix(), path.stat()
                if path.is_file() and key.startswith(prefix):
                    changed = f"{datetime.fromtimestamp(found.st_mtime, UTC):%FT%T.000Z}"
                    listed += f"<Contents><Key>{key}</Key><LastModified>{changed}</LastModified>"
                    listed += f"<Size>{found.st_size}</Size></Contents>"
            told = f"<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(told)))
            self.send_header("Content-Type", "application/xml")
            self.end_headers()
            self.wfile.write(told)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", gets
    finally:
        server.shutdown()
        server.server_close()
