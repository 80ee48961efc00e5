"""`schema`: the layout of messages as text, and what changed between two versions."""

from __future__ import annotations

from collections.abc import Iterator

from kdissect.cli.words import versions
from kdissect.problems import UsageError


def apis() -> Iterator[str]:
    """All APIs: key, name, versions, and from which version on they are flexible (KIP-482)."""
    from kdissect.schema import index
    from kdissect.schema.model import NEVER

    known = index.load().apis.values()
    width = max(len(api.name) for api in known)
    yield f"{'key':>3}  {'API':<{width}}  {'versions':<9}  flexible from"
    for api in known:
        request = api.request
        span = versions(list(range(request.versions.first, request.versions.last + 1)))
        flexible = "-" if request.flexible.first == NEVER else f"v{request.flexible.first}"
        yield f"{api.key:>3}  {api.name:<{width}}  {span:<9}  {flexible}"


def _version(text: str) -> int:
    if not text.lstrip("v").isdigit():
        raise UsageError(f"{text!r} is not a version number")
    return int(text.lstrip("v"))
