"""Confines the process of a command before it reads its first capture.

Only a process that is the command line's own is confined: `entry.run` says so. A program that calls the commands, a
notebook and a worker of Spark are not.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import click

from kdissect.cli.confinement.policy import Policy, command_policy

UNCONFINED = {
    "spark": "It starts Java, which starts Python, and captures and tables may lie in other systems.",
    "crosscheck": "It starts tshark, which reads its own files and configuration.",
    "completion": "It asks bash for its version. It reads no capture.",
    "wireshark": "It starts tshark to ask for its folders. It reads no capture.",
}
"""Commands without a sandbox, and why."""
BY_ITSELF = ("top",)
"""Commands that confine themselves, when tcpdump runs and the port of the metrics is open."""
OWN = f"{__name__}.own"
"""Key of `click.Context.meta`: a function to call when this process, the command's own, is confined."""
WANTED = f"{__name__}.wanted"
"""Key of `click.Context.meta`: whether the user wants a sandbox."""
READING_BYTES = 4 << 30
"""Room of private memory above --max-memory: what reading itself takes, threads' stacks, and memory that allocators
reserve and do not use (a first screen of 300 MB has 0.9 GiB of addresses and takes 0.4)."""
CORE_BYTES = 256 << 20
"""The same for each core: threads and their arenas."""


def confinable(name: str, command: click.Command) -> click.Command:
    """The command, changed so that it confines its process before it runs, and takes --no-sandbox."""
    if name in UNCONFINED or any("--no-sandbox" in option.opts for option in command.params):
        return command
    run = command.callback
    assert run is not None
    command.params.append(
        click.Option(
            ["--no-sandbox"], is_flag=True, expose_value=False, callback=_note_wish,
            help="Let the process reach all that you may: files, network, programs.",
        )
    )  # fmt: skip

    @functools.wraps(run)
    def confine_and_run(*arguments: Any, **settings: Any) -> Any:
        context = click.get_current_context()
        if name not in BY_ITSELF and not settings.get("allow_files"):
            paths = [
                str(option.name) for option in command.params
                if isinstance(option.type, click.Path) and option.name is not None
            ]  # fmt: skip
            confine_process(lambda: command_policy(name, _without_query(name, context.params), paths))
        else:
            limit_memory(context)
        return run(*arguments, **settings)

    command.callback = confine_and_run
    return command


def confine_process(policy: Callable[[], Policy]) -> bool:
    """Confines this process to a policy if it is the command's own and the user did not say otherwise; then calls what
    OWN holds. Returns whether the kernel confines it now."""
    context = click.get_current_context()
    started = context.meta.get(OWN)
    if started is None:
        return False
    limit_memory(context)
    confined = False
    if context.meta.get(WANTED, True):
        from kdissect.cli.confinement.call_filter import refuse_calls
        from kdissect.cli.confinement.landlock import landlock_version, restrict_files
        from kdissect.cli.confinement.system_calls import forbid_new_privileges

        version = landlock_version()
        if version and forbid_new_privileges():
            given = policy()
            confined = restrict_files(given, version) and refuse_calls(bool(given.programs), bool(given.ports))
    started()
    return confined


def is_own_process() -> bool:
    """Whether this process is the command line's own."""
    return OWN in click.get_current_context().meta


def limit_memory(context: click.Context) -> None:
    """Bounds the private memory of a command's own process, for the case that its own accounts of memory fail."""
    if context.meta.get(OWN) is None:
        return
    import resource

    allowed = (context.params.get("memory") or 0) + READING_BYTES + CORE_BYTES * (os.cpu_count() or 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY or soft > allowed:
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))


def sandbox_name() -> str:
    """The confinement that the kernel of this machine offers, for `--version`."""
    from kdissect.cli.confinement.landlock import landlock_version

    version = landlock_version()
    return f"sandbox: Landlock {version} and seccomp" if version else "no sandbox: this kernel has no Landlock"


def _note_wish(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    context.meta[WANTED] = not value


def _without_query(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters; of `sql` the last of its captures is the query."""
    return {**parameters, "captures": parameters["captures"][:-1]} if name == "sql" else parameters
