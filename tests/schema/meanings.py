"""What the schema says beside the layouts, as lines: meanings.txt is how it is meant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kdissect.schema import index
from kdissect.schema.index import Index
from kdissect.schema.model import Field

FILE = Path(__file__).with_name("meanings.txt")


def said(index: Index) -> list[str]:
    """APIs with listeners and former names; fields with constants, credentials, former names, messages inside."""
    lines = []
    for api in index.apis.values():
        spans = [("removed", api.removed), ("unstable", api.unstable)]
        about = [", ".join(api.listeners) or "none"]
        about += [f"{word} {span.first}-{span.last}" for word, span in spans if span.last >= 0]
        about += [f"formerly {name}" for name in api.former_names]
        lines.append(f"{api.key} {api.name}: {'; '.join(about)}. {api.doc}")
    for message in index.messages():
        lines += _fields(message.fields, message.name)
        for variant in message.variants:
            lines += _fields(variant.fields, f"{message.name} of {variant.release}")
    return list(dict.fromkeys(lines))


def _fields(fields: tuple[Field, ...], above: str) -> Iterator[str]:
    for item in fields:
        path = f"{above}.{item.name}"
        about = [f"{value} {text}" for value, text in item.values] + [f"was {name}" for name in item.former]
        about += ["secret"] * item.secret + [f"secret by {item.secret_by}"] * bool(item.secret_by)
        about += [f"holds {item.holds}"] * bool(item.holds)
        if about:
            yield f"{path}: {'; '.join(about)}"
        yield from _fields(item.fields, path)


if __name__ == "__main__":
    print(*said(index.load()), sep="\n")
