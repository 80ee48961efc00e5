"""`kdissect.open`: captures as tables, in Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from kdissect.capture import open_captures
from kdissect.capture.clock import find_span
from kdissect.capture.sources import Source
from kdissect.engine.bounds.room import checked
from kdissect.engine.capture_tables import JOINED, MADE, CaptureTables
from kdissect.engine.common import reads_capture
from kdissect.engine.settings import Progress, Settings
from kdissect.output import whole_seekable
from kdissect.problems import UsageError
from kdissect.tables.declaration import columns_of, declared, schema_of
from kdissect.tables.host_names import read_names
from kdissect.tables.projection import choose_columns_of_each
from kdissect.tables.recording import Reading
from kdissect.tables.selection import selection

if TYPE_CHECKING:
    from kdissect.engine.analysis_view import Analysis
    from kdissect.engine.extracts.annotating import Commented
    from kdissect.engine.extracts.checking import Checked
    from kdissect.engine.extracts.cutting import Written
    from kdissect.engine.extracts.redacting import Redacted
    from kdissect.engine.extracts.showing import Shown
    from kdissect.rewriting.standins import StandIns


MOST_JOBS = 1024
"""Threads that a caller may ask for: more than the cores of one machine; each one reserves 90 MB of addresses."""


class Capture(CaptureTables):
    """One or more captures, opened but not read. Every method reads them again (a pipe can be read only once). A second
    thread that reads at the same time gets a UsageError; a capture may be opened several times, once for each thread.

    Made by `kdissect.open`. A table has the same name, columns and values here, on the command line, in Parquet and in
    Spark; see `kdissect.tables.declaration`.
    """

    def __repr__(self) -> str:
        names = ", ".join(capture.name for capture in self._captures)
        return f"<Capture {names}>"

    def _repr_html_(self) -> str:
        """The view in a notebook: the captures, and how to go on. Nothing is read."""
        from kdissect.engine.display import capture_html

        return capture_html(self._captures)

    @property
    def analysis(self) -> Analysis:
        """Sessions, latency, findings, and comparison with another capture."""
        from kdissect.engine.analysis_view import Analysis

        return Analysis(self)

    @reads_capture
    def show(self, exchange_id: str | None = None, frame: int | None = None, *, reveal: bool = False) -> list[Shown]:
        """One exchange with every byte of its request and response explained; by frame, all that this frame completed.

        Record batches are taken apart down to their records; `reveal` shows keys, values and headers.
        `exchange_id` may name its connection by the beginning of its id ("3f2a:12"), `frame` is Wireshark's number.
        Raises UsageError when there is no such exchange, or when the beginning fits several connections.
        """
        from kdissect.engine.extracts.showing import parse_target, show

        return show(self._captures, self._everything, parse_target(exchange_id, frame), reveal)

    @reads_capture
    def cut(
        self,
        target: str | Path | BinaryIO,
        *,
        exchange: str | None = None,
        connection: str | None = None,
        frame: int | None = None,
        start: str | datetime | None = None,
        end: str | datetime | None = None,
        alone: bool = False,
        client: str | Sequence[str] | None = None,
        topic: str | Sequence[str] | None = None,
        group: str | None = None,
        where: str | None = None,
    ) -> Written:
        """Write a smaller capture which Wireshark opens: pcap, or pcapng where link types differ or TLS keys come
        along.

        `exchange`, or the exchange that `frame` completes: its connection from the start up to the acknowledgement of
        its response, so that ordinals, logins and sessions stay; `alone`: only the handshake and its own packets.
        `connection`: all of its packets. `client`, `topic`, `group`, `where` (a filter of `exchanges`): all packets of
        the connections that have such an exchange; several of them must hold of it. `start`, `end`: only packets of
        that time. Ids may be given by their beginning. Raises UsageError for what is not there, OutputError.
        """
        from kdissect.engine.extracts.cutting import Part, cut

        self.not_input(target)
        several = any(one is not None and one != () for one in (client, topic, group, where))
        part = Part(
            exchange, frame, connection, *find_span(start, end, self._captures), alone,
            self._connections_of(client, topic, group, where) if several else None,
        )  # fmt: skip
        return cut(self._captures, self._everything, part, target)

    @reads_capture
    def commented(self, target: str | Path | BinaryIO, comments: pa.Table) -> Commented:
        """Write the same packets, as pcapng, with comments: a table of file, frame (as other tables name them) and
        comment. Raises UsageError for several captures and for pipes, OutputError.
        """
        from kdissect.engine.extracts.annotating import write_commented

        self.not_input(target)
        return write_commented(self._captures, self._everything, comments, target)

    def _connections_of(
        self,
        client: str | Sequence[str] | None,
        topic: str | Sequence[str] | None,
        group: str | None,
        where: str | None,
    ) -> frozenset[int]:
        """Ids of the connections that have an exchange like this. Raises UsageError where there is none."""
        wish = replace(self._everything, selection=selection(client, None, topic) or None)
        found = set(
            Capture(self._captures, wish).table("exchanges", ["connection_id"], where)["connection_id"].to_pylist()
        )
        if group is not None:
            quoted = group.replace("'", "''")
            found &= set(self.table("connections", ["connection_id"], f"group_id = '{quoted}'")[0].to_pylist())
        if not found:
            raise UsageError("no connection of this capture has an exchange of what was asked for")
        return frozenset(int(one, 16) for one in found)

    @reads_capture
    def redact(self, target: str | Path | BinaryIO, *, names: StandIns | None = None, plain: bool = False) -> Redacted:
        """Write a copy that can be shown to others. Record keys, values and headers, credentials, addresses of clients
        and everything that is not Kafka are replaced by stand-ins of the same length. With `names`
        (`kdissect.rewriting.standins`) names of topics, groups, clients, users and hosts are replaced too. `plain`: TLS
        connections that can be decrypted become plain TCP, a packet each with the records that it completes.

        The same exchanges come out of it, but for their clients' addresses and the ids made of these, and names. Raises
        UsageError for several captures and for pipes, OutputError.
        """
        from kdissect.engine.extracts.redacting import redact

        self.not_input(target)
        return redact(self._captures, self._everything, target, names, plain)

    @reads_capture
    def check(self, names: StandIns | None = None) -> Checked:
        """Look for what `redact` would replace in this capture, which should be a redacted one; `names` are those of
        the key file that it was redacted with, without them names are not judged.

        Raises UsageError for several captures and for pipes.
        """
        from kdissect.engine.extracts.checking import check

        return check(self._captures, self._everything, names)

    @reads_capture
    def report(self, target: str | Path | BinaryIO, *, named: str | None = None) -> int:
        """Write the capture as one HTML file that any browser opens: findings, latency, sessions, versions, throughput,
        quality; returns its bytes.

        `named`: how the commands in it name the capture; its files when None. Nothing in it comes from records or
        credentials. Needs the extra `report`. Raises UsageError without it, OutputError.
        """
        import shlex

        from kdissect import report
        from kdissect.engine.extracts.reported import bytes_by_id, can_read_again, gathered, settings_of_journeys

        report.ready()
        self.not_input(target)
        files = [str(one.path or one.name) for capture in self._captures for one in capture.members]
        with whole_seekable(target) as stream:
            settings = replace(self._everything, progress=None)
            explain = partial(bytes_by_id, self._captures, settings)
            found, summary = gathered(self._captures, self._settings)
            bounded = Capture(self._captures, settings_of_journeys(self._settings, found))
            again = summary.exchanges and can_read_again(self._captures)
            ways = bounded.tables(report.JOURNEYS) if again else {}
            made = report.make_report(found, summary, named or shlex.join(files), explain, ways, bounded.left_out)
            return stream.write(report.render(made).encode())

    @reads_capture
    def save(self, directory: str | Path, tables: Mapping[str, Sequence[str] | None] | None = None) -> dict[str, int]:
        """Every table as Parquet, `directory/TABLE.parquet`; returns rows by table. Memory stays flat: rows lie in
        temporary files in the directory until all of them can be put in order. Where several threads work on a large
        capture, a second process analyses and writes them.

        `tables`: only these, with these columns (None: all). One that needs all of its rows at once (`findings`,
        `time_budget`, `topic_traffic`, `traced`, `transactions`) is then `table`'s: what did not fit is named in
        `left_out`.
        """
        from kdissect.engine.saving.parquet import save
        from kdissect.engine.saving.spooled_evidence import with_evidence

        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        if tables is None:
            bounded = Capture(self._captures, with_evidence(self._settings))
            return save(*bounded._run(dict.fromkeys(MADE), {}), folder)
        from kdissect.tables.formats import write_parquet

        written: dict[str, int] = {}
        tables = choose_columns_of_each(tables)
        held = {name: columns for name, columns in tables.items() if declared(name).made.needs_everything}
        if held and self.size is None:  # a pipe is read once
            held = dict(tables)
        if flowing := {name: columns for name, columns in tables.items() if name not in held}:
            written |= save(*self._run(flowing, {}), folder)
        if JOINED in held and self.size is not None:
            named = held.pop(JOINED)
            columns = columns_of(JOINED, named)
            path = folder / f"{JOINED}.parquet"
            written[JOINED] = write_parquet(schema_of(JOINED, columns), self.batches(JOINED, columns), path)
        for name, table in (self._tables(held, {}) if held else {}).items():
            written[name] = write_parquet(table.schema, table.to_batches(), folder / f"{name}.parquet")
        return written


def open_capture(
    source: Source | Sequence[Source],
    *,
    start: str | datetime | None = None,
    end: str | datetime | None = None,
    keylog: str | Path | None = None,
    hosts: str | Path | Sequence[str | Path] | None = None,
    client: str | Sequence[str] | None = None,
    broker: str | int | Sequence[str | int] | None = None,
    topic: str | Sequence[str] | None = None,
    verify: bool = False,
    follow: Callable[[], bool] | None = None,
    progress: Progress | None = None,
    jobs: int | None = None,
    slow: float | None = None,
    memory: int | None = None,
) -> Capture:
    """Open a capture: a path, a glob, a directory, a list of these, or an open binary file. Nothing is read yet.

    `start`, `end`: leave out packets before and after (ISO 8601, UTC by default; or datetimes; or times of day,
    10:30:00, of the first packet's day). `keylog`: a file with TLS keys (SSLKEYLOGFILE format) to decrypt with; those
    that a pcapng carries are used anyway. `hosts`: files with names of addresses, like /etc/hosts or what `kubectl get
    pods,services,endpoints -o json` prints; names that a pcapng carries come behind them.

    `client` (a client id, or `ip` or `ip:port`), `broker` (a node id, or an address), both also by a name in `hosts`,
    and `topic` (a name) select traffic. Each may be several: only these are read, everywhere. Packets between other
    addresses are left out before anything else is done with them; which exchanges concern a topic is said in
    `kdissect.tables.selection`.

    `verify`: decompress record batches, check their checksums and look at every record; what is not right becomes a row
    of `problems`. `follow`: go on reading a file that still grows, a pipe as it comes, or a rotated set in a directory
    with the files that it gets. Reading ends when this says True; it is asked some times a second. `progress` is called
    with bytes read and bytes in all (None where unknown).

    `jobs`: threads to read with; None: as many as there are cores (8 at most), for captures of some size. The rows and
    their order do not depend on it. `slow`: seconds from which on findings call a request slow (1).

    `memory`: bytes that the process may take, about, for tables and analyses that need all of their rows at once. Rows
    that do not fit are left out, and reported (`Capture.left_out`, a row of `problems`). None: as many as they need.
    Tables in pieces (`batches`, `ordered`, `save`) and the first screen take flat memory anyway.

    Raises CaptureError when there is no such capture, or it is none; Raises UsageError for a source that is none or an
    empty name, a time that cannot be read, a file that is no key log, a client, broker or topic that is no possible
    name, several captures to follow. Also for `jobs`, `slow` or `memory` that is no number of them.
    """
    if "IPython" in sys.modules:
        from kdissect.engine.display import in_notebooks

        in_notebooks()
    keys = None
    if keylog is not None:
        from kdissect.capture.keys import read_key_log

        keys = read_key_log(keylog)
    names = read_names([] if hosts is None else [hosts] if isinstance(hosts, str | Path) else hosts)
    wish = selection(client, broker, topic, names)
    if jobs is not None and not (isinstance(jobs, Integral) and 1 <= jobs <= MOST_JOBS):
        raise UsageError(f"jobs is a number of threads, 1 to {MOST_JOBS}, not {jobs!r}")
    if slow is not None and not (isinstance(slow, Real) and slow > 0):
        raise UsageError(f"slow is a number of seconds above 0, not {slow!r}")
    checked(memory)
    captures = open_captures(source, growing=follow is not None)
    settings = Settings(
        *find_span(start, end, captures), progress, keys, Reading(verify=verify), wish or None,
        follow, jobs=jobs or 0, slow=slow, memory=memory,
        hosts=names,
    )  # fmt: skip
    if follow is not None and len(captures) > 1:
        raise UsageError("only one capture can be followed")
    return Capture(captures, settings, keylog)
