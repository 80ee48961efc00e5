"""File systems elsewhere, read without a JVM: by a folder of this machine, and one in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdissect.capture import CaptureSet
from kdissect.problems import CaptureUnreadable
from kdissect.spark import remote_storage
from kdissect.spark.remote_storage import RemoteFile, RemoteMember, Storage, open_storage
from kdissect.spark.stages.partition_capture import FAR, Files
from kdissect.spark.stages.plan import Source


def arguments(path: str, settings: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    storage = Storage.of(path, settings.get)
    return storage.root, dict(storage.arguments)


def test_settings_of_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "fs.s3a.endpoint": "http://127.0.0.1:9000/", "fs.s3a.access.key": "anyone", "fs.s3a.secret.key": "anything",
        "fs.s3a.bucket.night.access.key": "owl", "fs.s3a.path.style.access": "true",
    }  # fmt: skip
    common = {"secret_key": "anything", "endpoint_override": "127.0.0.1:9000", "scheme": "http"}
    assert arguments("s3a://day/*.pcap", settings) == ("s3a://day/", {**common, "access_key": "anyone"})
    assert arguments("s3://night", settings) == ("s3://night/", {**common, "access_key": "owl"})
    virtual = {"fs.s3a.endpoint": "s3.eu-west-1.amazonaws.com", "fs.s3a.path.style.access": "false"}
    made = {"endpoint_override": "s3.eu-west-1.amazonaws.com", "region": "eu-west-1", "force_virtual_addressing": True}
    assert arguments("s3a://day/x", virtual)[1] == made
    anonymous = {"fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"}
    everywhere = {"fs.s3a.endpoint": "s3.amazonaws.com", "fs.s3a.endpoint.region": "eu-north-1"}
    plain = {"fs.s3a.connection.ssl.enabled": "false"}
    made = {"anonymous": True, "region": "eu-north-1", "scheme": "http"}
    assert arguments("s3a://day/x", {**anonymous, **everywhere, **plain})[1] == made
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert arguments("s3a://day/x", {}) == ("s3a://day/", {})  # pyarrow's own chain of credentials
    assert open_storage(Storage.of("s3a://day/x", settings.get))[1] == "day/"


def test_settings_of_azure() -> None:
    host = "mine.dfs.core.windows.net"
    settings = {f"fs.azure.account.key.{host}": "a2V5", "fs.azure.account.key.other.dfs.core.windows.net": "no"}
    root, made = arguments(f"abfss://day@{host}/a/b.pcap", settings)
    assert (root, made) == (f"abfss://day@{host}/", {"account_name": "mine", "account_key": "a2V5"})
    assert open_storage(Storage.of(root, settings.get))[1] == "day/"
    named = {"id": "me", "secret": "hush", "endpoint": "https://login.microsoftonline.com/ours/oauth2/token"}
    settings = {f"fs.azure.account.oauth2.client.{name}": value for name, value in named.items()}
    assert arguments("abfs://day@mine.dfs.core.chinacloudapi.cn/x", settings)[1] == {
        "account_name": "mine", "client_id": "me", "client_secret": "hush", "tenant_id": "ours",
        "dfs_storage_authority": ".dfs.core.chinacloudapi.cn", "blob_storage_authority": ".blob.core.chinacloudapi.cn",
    }  # fmt: skip


def test_schemes_that_nothing_opens() -> None:
    for path in ("nosuch://b/x", "dbfs:/x"):
        with pytest.raises(remote_storage.UNOPENED):
            open_storage(Storage.of(path, lambda name: None))


def test_files_of_fsspec(captures: Path) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    storage = Storage.of("memory://b/x", lambda name: None)
    data = (captures / "base_tiny.pcap").read_bytes()
    try:
        for place in ("/b/day/one.pcap", "/b/day/deep/two.pcap", "/b/day/_kept/x", "/b/top.pcap"):
            memory.pipe_file(place, data)
        deep = storage.list_files("memory://b/day", deep=True)
        assert {one.path: one.size for one in deep if not one.folder} == {
            "memory://b/day/one.pcap": len(data), "memory://b/day/deep/two.pcap": len(data)
        }  # fmt: skip
        assert all(one.changed for one in deep if not one.folder)
        assert [one.path for one in storage.list_files("memory://b/day", deep=False) if one.folder] == [
            "memory://b/day/deep"
        ]
        assert [one.path for one in storage.list_files("memory://b/top.pcap", deep=True)] == ["memory://b/top.pcap"]
        assert storage.list_files("memory://b/none", deep=True) == []
        assert storage.head("memory://b/top.pcap", 24) == data[:24]
        member = RemoteMember("top.pcap", storage=storage, address="memory://b/top.pcap", plain=False)
        capture = CaptureSet("top", [member])
        assert (capture.rereadable, capture.size) == (True, len(data))
        assert sum(len(block.packets) for block in capture.blocks(capture.window())) > 0
        assert capture.read(100, 50) == data[100:150]
        capture.close()
    finally:
        memory.rm("/b", recursive=True)


class Counting:
    """A file that notes what is asked of it: (offset, bytes). It cannot be read behind `most`."""

    asked: list[tuple[int, int]]
    most: int

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()

    def size(self) -> int:
        return len(self._data)

    def read_at(self, size: int, offset: int) -> bytes:
        self.asked.append((offset, size))
        if offset + size > self.most:
            raise OSError("gone, says hush")
        return self._data[offset : offset + size]

    def close(self) -> None:
        pass


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Storage, bytes]:
    """A file `x` of 5 MB."""
    data = np.random.default_rng(3).bytes(5 << 20)
    (tmp_path / "x").write_bytes(data)
    monkeypatch.setattr(Counting, "asked", [], raising=False)
    monkeypatch.setattr(Counting, "most", 1 << 40, raising=False)
    monkeypatch.setattr(Storage, "open", lambda self, path: Counting(tmp_path / "x"))
    monkeypatch.setattr(remote_storage, "BLOCK", 1 << 20)
    return Storage("far://b/", (("secret_key", "hush"),)), data


def test_reading_on_asks_for_blocks(counted: tuple[Storage, bytes]) -> None:
    storage, data = counted
    file = RemoteFile(storage, "far://b/x")
    found, piece = bytearray(), bytearray(300_000)
    while got := file.readinto(memoryview(piece)):
        found += piece[:got]
    assert bytes(found) == data
    assert Counting.asked == [(n << 20, 1 << 20) for n in range(5)]
    out = bytearray(10)
    assert (file.pread(memoryview(out), 77), bytes(out)) == (10, data[77:87])
    assert file.pread(memoryview(out), len(data) - 3) == 3


def test_what_cannot_be_read_is_no_data(counted: tuple[Storage, bytes]) -> None:
    """Reading on stops and says why; a range raises, so that the task is run again."""
    storage, data = counted
    Counting.most = 2 << 20
    file = RemoteFile(storage, "far://b/x")
    out = bytearray(3 << 20)
    assert file.readinto(memoryview(out)) == 2 << 20
    assert (bytes(out[: 2 << 20]), file.problem) == (data[: 2 << 20], "reading stopped: gone, says ...")
    with pytest.raises(OSError, match=r"^far://b/x: gone, says \.\.\.$"):
        file.pread(memoryview(out), 0)
    Counting.most = 0
    with pytest.raises(CaptureUnreadable, match=r"far://b/x: cannot be read on .* \(far://b/x: gone, says \.\.\.\)"):
        RemoteMember("x", storage=storage, address="far://b/x", plain=False).open()


def test_near_ranges_are_one_request(counted: tuple[Storage, bytes]) -> None:
    storage, data = counted
    source = Source("x", [("x", "far://b/x")], [len(data)], True, [], [len(data)], [(len(data), 7)], (), storage)
    files = Files(source)
    rng = np.random.default_rng(5)
    near, far = np.sort(rng.integers(0, 1 << 20, 500)), np.sort(rng.integers(4 << 20, 5 << 20, 500) - 2000)
    at = np.concatenate([near, far])
    assert at[500] - at[499] > FAR
    sizes = rng.integers(0, 1500, 1000)
    places = np.cumsum(sizes) - sizes
    out = np.full(int(sizes.sum()), 0xEE, np.uint8)
    files.read_ranges(at, sizes, out, places)
    for begin, size, place in zip(at.tolist(), sizes.tolist(), places.tolist(), strict=True):
        assert out[place : place + size].tobytes() == data[begin : begin + size]
    assert len(Counting.asked) == 2
    Counting.most = 0
    with pytest.raises(OSError, match="gone"):
        files.read_ranges(at[:1], sizes[:1] + 1, out, places[:1])
    files.close()
