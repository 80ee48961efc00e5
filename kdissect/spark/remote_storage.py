"""File systems elsewhere, as driver and tasks read them without a JVM: those of pyarrow, and of fsspec.

Rules.

- `s3:` and `s3a:` are pyarrow's S3FileSystem and `abfs:`, `abfss:` its AzureFileSystem. They get the settings of
  Hadoop's clients that the session has (`fs.s3a.access.key`, `fs.azure.account.key` and so on), and go by their own
  default credentials where it has none.
- Any other scheme is what pyarrow makes of the address (`gs:`; `hdfs:` where libhdfs is), else what fsspec has for it,
  where that is installed.
- A key or secret of the session's settings is in no error's text.
- A range that cannot be read raises OSError, for the task to be run again: zeros in its place would be decoded.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from kdissect.capture.bytestreams import Stream, decompressed
from kdissect.capture.captureset import Member
from kdissect.problems import CaptureUnreadable
from kdissect.spark.file_system import Listed, is_hidden

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

Setting = Callable[[str], str | None]
"""A setting of Hadoop's by its name, None where nobody has set it."""
BLOCK = 8 << 20
"""Bytes of one request while a file is read from front to back: at 100 MB/s it takes longer than waiting for it."""
UNOPENED = (OSError, ValueError, TypeError, ImportError, NotImplementedError)
"""What is raised for a scheme that there is no file system for, for one that lacks a library, and for arguments that
only a later pyarrow has."""
_ROOT = re.compile(r"([a-z][a-z0-9+.-]*):(?://([^/]*))?", re.IGNORECASE)
_SECRET = re.compile("key|secret|token")
_REGION = re.compile(r"s3[.-]([a-z0-9-]+)\.amazonaws\.com")


@dataclass(frozen=True, slots=True)
class Storage:
    """A file system elsewhere, which tasks open for themselves."""

    root: str
    """What all its paths begin with: scheme, authority and a slash."""
    arguments: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    """What its class in pyarrow is called with: by name, keys and secrets among them."""

    @classmethod
    def of(cls, path: str, setting: Setting) -> Storage:
        """The file system of a path. Raises OSError where S3 does not say the region of a bucket."""
        root, scheme, authority = _split(path)
        make = _ARGUMENTS.get(scheme)
        chosen = {} if make is None else make(authority, setting)
        given = tuple((name, value) for name, value in chosen.items() if value is not None)
        return cls(root, given)

    def list_files(self, path: str, deep: bool) -> list[Listed]:
        """As `HadoopFiles.list_files`."""
        from pyarrow.fs import FileSelector, FileType

        system, top = open_storage(self)
        own = (top + f"{path}/"[len(self.root) :]).rstrip("/") or "/"
        found = system.get_file_info(own)
        infos = [found]
        if found.type != FileType.File:
            infos = system.get_file_info(FileSelector(own, allow_not_found=True, recursive=deep))
        return [
            Listed(self.root + one.path[len(top) :], one.size or 0, _change_time(system, one), not one.is_file)
            for one in infos
            if not is_hidden(one.path[len(own) :])
        ]

    def head(self, path: str, most: int) -> bytes:
        """As `HadoopFiles.head`."""
        with self.open(path) as file:
            return bytes(file.read_at(most, 0))

    def open(self, path: str) -> pa.NativeFile:
        """A file, to read ranges of."""
        system, top = open_storage(self)
        return system.open_input_file(top + path[len(self.root) :])

    def explain(self, error: Exception) -> str:
        """The first line of an error, without keys and secrets."""
        text = next(iter(str(error).splitlines()), type(error).__name__)
        for name, value in self.arguments:
            if _SECRET.search(name):
                text = text.replace(value, "...")
        return text


@cache
def open_storage(storage: Storage) -> tuple[FileSystem, str]:
    """The file system, once in a process, and what its own paths begin with. Raises UNOPENED."""
    from pyarrow import fs

    _, scheme, authority = _split(storage.root)
    if scheme in ("s3", "s3a"):
        return fs.S3FileSystem(**dict(storage.arguments)), f"{authority}/"
    if scheme in ("abfs", "abfss"):
        return fs.AzureFileSystem(**dict(storage.arguments)), f"{authority.partition('@')[0]}/"
    address = f"{scheme}://{authority}/"  # of hdfs:/ fsspec would make a path of this machine
    try:
        system, top = fs.FileSystem.from_uri(address)
    except UNOPENED as error:
        try:
            from fsspec.core import url_to_fs

            other, top = url_to_fs(address)
        except Exception:  # a constructor may want what the address does not say
            raise error from None
        system = fs.PyFileSystem(fs.FSSpecHandler(other))
    return system, top.rstrip("/") + "/"


def _split(path: str) -> tuple[str, str, str]:
    """The beginning of all paths of a file system, which ends in a slash; its scheme; its authority, "" for none."""
    found = _ROOT.match(path)
    assert found is not None
    return f"{found[0]}/", found[1].lower(), found[2] or ""


def _change_time(system: FileSystem, info: Any) -> int:
    """A file's time of change in ms, 0 for a folder."""
    if not info.is_file:
        return 0
    if info.mtime_ns is not None:
        return int(info.mtime_ns) // 10**6
    return int(system.handler.fs.modified(info.path).timestamp() * 1000)  # fsspec's listings need not have it


def _s3(bucket: str, setting: Setting) -> Mapping[str, Any]:
    """Hadoop's settings of S3A, those of the bucket before the common ones, as arguments of S3FileSystem."""

    def of_bucket(name: str) -> str | None:
        return setting(f"fs.s3a.bucket.{bucket}.{name}") or setting(f"fs.s3a.{name}")

    scheme, _, endpoint = (of_bucket("endpoint") or "").rstrip("/").rpartition("://")
    if endpoint == "s3.amazonaws.com":  # the endpoint of all regions: pyarrow finds each region's own
        endpoint = ""
    of_endpoint = _REGION.fullmatch(endpoint)
    region = of_bucket("endpoint.region") or (of_endpoint and of_endpoint[1])
    if not (region or endpoint or os.environ.keys() & {"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"}):
        from pyarrow.fs import resolve_s3_region

        region = resolve_s3_region(bucket)
    return {
        "access_key": of_bucket("access.key"),
        "secret_key": of_bucket("secret.key"),
        "session_token": of_bucket("session.token"),
        "anonymous": "Anonymous" in (of_bucket("aws.credentials.provider") or "") or None,
        "region": region,
        "endpoint_override": endpoint or None,
        "scheme": "http" if of_bucket("connection.ssl.enabled") == "false" else scheme or None,
        "force_virtual_addressing": bool(endpoint and of_bucket("path.style.access") == "false") or None,
    }


def _azure(authority: str, setting: Setting) -> Mapping[str, Any]:
    """Hadoop's settings of ABFS, those of the account before the common ones, as arguments of AzureFileSystem."""
    host = authority.partition("@")[2]
    account, _, domain = host.partition(".")

    def of_account(name: str) -> str | None:
        return setting(f"fs.azure.{name}.{host}") or setting(f"fs.azure.{name}")

    own = None if domain == "dfs.core.windows.net" else domain
    endpoint = of_account("account.oauth2.client.endpoint")  # https://HOST/TENANT/oauth2/token
    return {
        "account_name": account,
        "account_key": of_account("account.key"),
        "sas_token": of_account("sas.fixed.token"),
        "client_id": of_account("account.oauth2.client.id"),
        "client_secret": of_account("account.oauth2.client.secret"),
        "tenant_id": endpoint and endpoint.split("/")[3],
        "dfs_storage_authority": own and f".{own}",
        "blob_storage_authority": own and f".{own.replace('dfs.', 'blob.', 1)}",
    }


_ARGUMENTS: Mapping[str, Callable[[str, Setting], Mapping[str, Any]]] = {
    "s3": _s3, "s3a": _s3, "abfs": _azure, "abfss": _azure,
}  # fmt: skip


class RemoteFile:
    """A plain file elsewhere, as a `Stream`: read on in blocks of BLOCK bytes, and again by one request a range.
    `must_read`: a range that cannot be read raises OSError, where it is a problem of the file else."""

    compression = ""
    rereadable = True
    problem = ""

    def __init__(self, storage: Storage, path: str, must_read: bool = False) -> None:
        self._storage = storage
        self._path = path
        self._must_read = must_read
        self._file = storage.open(path)
        self.size: int | None = self._file.size()
        self._end: int = self.size
        self._at = 0
        self._block = b""
        self._block_at = 0

    def readinto(self, target: memoryview) -> int:
        """As `Stream.readinto`."""
        done = 0
        while done < len(target) and self._at < self._end:
            begin = self._at - self._block_at
            if not 0 <= begin < len(self._block):
                try:
                    self._block, self._block_at, begin = self._file.read_at(BLOCK, self._at), self._at, 0
                except OSError as error:
                    told = self._storage.explain(error)
                    if self._must_read:
                        raise OSError(f"{self._path}: {told}") from None
                    self.problem = f"reading stopped: {told}"
                    break
                if not self._block:
                    break
            piece = memoryview(self._block)[begin : begin + len(target) - done]
            target[done : done + len(piece)] = piece
            done += len(piece)
            self._at += len(piece)
        return done

    def pread(self, target: memoryview, offset: int) -> int:
        """As `Stream.pread`; raises OSError."""
        try:
            data = self._file.read_at(len(target), offset)
        except OSError as error:
            raise OSError(f"{self._path}: {self._storage.explain(error)}") from None
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """As `Stream.close`."""
        self._file.close()


class RemoteMember(Member):
    """A file elsewhere as a member of a capture set. `plain`: the file is known to be not compressed, so there is no
    request for its first bytes. `must_read`: it is read once and never again, so a failure that may pass is raised
    (OSError), for the task to be run again."""

    def __init__(self, name: str, storage: Storage, address: str, plain: bool, must_read: bool = False) -> None:
        super().__init__(name)
        self.must_read = must_read
        self.storage = storage
        self.address = address
        self.plain = plain

    @property
    def regular(self) -> bool:
        """As `Member.regular`."""
        return True

    def open(self) -> Stream:
        """As `Member.open`."""
        try:
            file = RemoteFile(self.storage, self.address, self.must_read)
            return file if self.plain else decompressed(file)
        except UNOPENED as error:
            if self.must_read and isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise OSError(f"{self.address}: {self.storage.explain(error)}") from None
            told = f"{self.address}: cannot be read on {platform.node()} ({self.storage.explain(error)})."
            raise CaptureUnreadable(told) from None
