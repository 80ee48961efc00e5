"""The files and calls that a confined command may still reach."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from kdissect.python_process import can_start_python, interpreter_paths

TEMPORARY = ("TMPDIR", "TEMP", "TMP")
"""Variables that name the folder for temporary files (module tempfile)."""
SYSTEM = (
    "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/lib", "/lib32", "/lib64", "/usr/local/lib",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload",  # shared libraries
    "/nix/store", "/gnu/store",
    "/usr/share/zoneinfo", "/etc/localtime", "/etc/timezone",
    "/usr/share/locale", "/usr/share/terminfo", "/etc/terminfo",
    "/etc/ssl/openssl.cnf", "/etc/pki/tls/openssl.cnf", "/etc/mime.types",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/filesystems", "/proc/sys/vm",
    "/sys/devices/system", "/sys/kernel/mm/transparent_hugepage", "/sys/fs/cgroup", "/dev/urandom", "/dev/random",
)  # fmt: skip
"""What programs read that run at all, and where Python and its packages ask for sizes of memory and processors."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty")
LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1",
           "/lib/ld-musl-aarch64.so.1")  # fmt: skip
"""What the kernel starts in the place of a program with shared libraries."""
RESOLVER = ("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services",
            "/run/systemd/resolve", "/etc/ssl/certs", "/etc/pki/tls/certs")  # fmt: skip
"""What the C library reads to find the address of a host, and TLS to prove who it is."""
DNS_PORT = 53
OF_RECEIVERS = (
    "OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_KEY",
    "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
"""Variables that name files with certificates for the sender of OTLP."""
INPUTS = ("words",)
"""Parameters besides those of type Path that name inputs: of `show`."""
OUTPUTS = ("output", "html", "macros", "names")
"""Parameters that name files or folders to write."""
STANDARD = "-"
LINKS = 10_000
"""Links in folders of captures that are looked behind: each is a rule."""


class Policy:
    """Places that stay open, as paths; those that do not exist are left out.

    `read` and `write`: files, and folders with all below them. `listed`: folders whose names may be read. `devices`:
    read, written, and asked (ioctl). `programs`: what may be started; if none, nothing. `signals`: other processes may
    be sent signals. `ports`: TCP ports that may be connected to; if there are any, UDP may be used too, for the
    names of hosts.
    """

    def __init__(self) -> None:
        self.read = [*_interpreter(), *SYSTEM]
        self.write: list[str] = []
        self.listed: list[str] = []
        self.devices = list(DEVICES)
        self.programs: list[str] = []
        self.signals = False
        self.ports: list[int] = []

    def allow_temporary_files(self) -> None:
        """The folder for temporary files."""
        named = [value for name in TEMPORARY if (value := os.environ.get(name))]
        self.write += named or ["/tmp", "/var/tmp"]

    def allow_input(self, name: str, growing: bool = False) -> None:
        """A capture, a folder, a pattern, a file with keys, or standard input. `growing`: further files may appear
        next to it."""
        if name == STANDARD:
            self.read += _standard_input()
            return
        paths = _matching(name)
        self.read += paths
        for path in paths:
            self.read += _links_in(path)
        searched = [] if paths == [name] else [_searched_folder(name)]
        self.listed += searched
        if growing:
            self.read += [*searched, *(os.path.dirname(os.path.realpath(path)) for path in paths)]

    def allow_output(self, name: str) -> None:
        """A file or a folder that will be written, or the folder in which it will be made."""
        if name == STANDARD:
            return
        place = os.path.realpath(name)
        if os.path.isdir(place):
            self.write.append(place)
            return
        if os.path.exists(place):
            self.write.append(place)
            if not stat.S_ISREG(os.stat(place).st_mode):  # a device or a pipe, which is written as it is
                self.devices.append(place)
                return
        folder = os.path.dirname(place)
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        self.write.append(folder)

    def allow_python(self) -> None:
        """Another process that runs this Python, in the same sandbox."""
        if can_start_python():
            self.listed.append(os.path.dirname(_package()))  # where it finds kdissect: in a checkout the current folder
            for path in interpreter_paths():
                self._allow_program(path)

    def allow_pager(self) -> None:
        """The pager, where output may go through one."""
        if not (sys.stdout.isatty() and sys.stdin.isatty()):
            return
        from kdissect.cli.printing.terminal import pager_command

        command = pager_command()
        if command:
            import shutil

            path = shutil.which(command[0]) or command[0]
            self._allow_program(path)
            if _is_script(path):  # it may start what it likes, in this sandbox
                self.programs += os.get_exec_path()
                self.read += os.get_exec_path()
            self.read += [path for path in (os.environ.get("TERMINFO"), os.path.expanduser("~/.terminfo")) if path]

    def allow_receiver(self, url: str) -> None:
        """Connections to the port of an OTLP receiver, or to that of the proxy on the way. Raises UsageError."""
        from urllib.parse import urlsplit
        from urllib.request import getproxies

        from kdissect.otlp.receivers import receiver_port

        self.ports += [receiver_port(url), DNS_PORT]
        proxy = getproxies().get(urlsplit(url).scheme)
        if proxy:
            self.ports.append(receiver_port(proxy if "://" in proxy else f"http://{proxy}"))
        self.read += RESOLVER
        self.read += [path for name in OF_RECEIVERS if (path := os.environ.get(name))]

    def allow_caches(self) -> None:
        """In a checkout, whose kernels and layouts are compiled as they are needed: where they are kept."""
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        if os.path.exists(os.path.join(package, "schema", "layouts.bin")):
            return
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        self.write += [os.path.join(package, "__pycache__"), os.environ.get("NUMBA_CACHE_DIR", "")]
        cache = os.path.join(home, "kdissect")
        self.write += [cache] if os.path.isdir(cache) else [home]

    def _allow_program(self, path: str) -> None:
        self.programs += [os.path.realpath(path), *map(os.path.realpath, LOADERS)]
        self.read.append(path)


def command_policy(name: str, parameters: dict[str, Any], paths: Iterable[str]) -> Policy:
    """The files and calls that the command `name` may reach when it is run with `parameters`; `paths` are the names
    of those that are of type Path."""
    policy = Policy()
    policy.allow_temporary_files()
    policy.allow_caches()
    growing = bool(parameters.get("follow"))
    for parameter in dict.fromkeys([*paths, *INPUTS]):
        if parameter in OUTPUTS and parameter != "names":
            continue
        for value in _texts(parameters.get(parameter)):
            policy.allow_input(value, growing)
    for parameter in OUTPUTS:
        for value in _texts(parameters.get(parameter)):
            policy.allow_output(value)
    whole = parameters.get("output") and not parameters.get("table") and not parameters.get("messages")
    if name == "sql" or (name == "CAPTURE..." and whole):
        policy.allow_python()  # a second process writes tables
    if name == "otlp":
        from kdissect.cli.options import receiver_of

        if (url := receiver_of(parameters["places"])) is not None:
            policy.allow_receiver(url)
    policy.allow_pager()
    return policy


def _interpreter() -> list[str]:
    """Python, its library, and its packages: without the current folder, which `python -m` puts first."""
    here = os.getcwd() if os.path.isdir(".") else ""
    places = [path for path in sys.path if path and path != here]
    return [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *places, _package()]


def _package() -> str:
    """The folder of kdissect itself."""
    import kdissect

    return os.path.dirname(os.path.abspath(kdissect.__file__))


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, (str, os.PathLike)):
        yield os.fspath(value)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _texts(one)


def _standard_input() -> list[str]:
    """The file that standard input reads, which may be opened again by its path."""
    try:
        if sys.stdin is not None and stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
            return [os.path.realpath(f"/proc/self/fd/{sys.stdin.fileno()}")]
    except (OSError, ValueError):
        pass
    return []


def _matching(name: str) -> list[str]:
    """The paths that a name or a pattern stands for."""
    try:
        if os.path.exists(name) or not any(c in name for c in "*?["):
            return [name]
        from glob import glob

        return glob(name, recursive=True)
    except (OSError, ValueError):
        return []


def _searched_folder(pattern: str) -> str:
    """The folder in which a pattern begins to match."""
    magic = [place for c in "*?[" if (place := pattern.find(c)) >= 0]
    return os.path.dirname(pattern[: min(magic, default=len(pattern))]) or "."


def _links_in(folder: str) -> list[str]:
    """Where links in a folder of captures lead to."""
    if not os.path.isdir(folder):
        return []
    found: list[str] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [os.path.join(place, name) for name in names if not name.startswith(".")]
        found += [os.path.realpath(path) for path in paths if os.path.islink(path)]
        if len(found) > LINKS:
            break
    return found[:LINKS]
