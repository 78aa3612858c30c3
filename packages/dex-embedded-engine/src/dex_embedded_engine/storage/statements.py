"""Owns reading `.sql` files: named statements, and the numbered migrations."""

from __future__ import annotations

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load_statements(topic: str) -> dict[str, str]:
    """Return the statements of ``queries/<topic>.sql``, by the name above each."""
    text = files(__package__).joinpath("queries", f"{topic}.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def load_migrations() -> list[str]:
    """Return the migration scripts in order; script number n leads to schema version n."""
    folder = files(__package__).joinpath("migrations")
    scripts = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    for number, name in enumerate(scripts, start=1):
        if not name.startswith(f"{number:04d}_"):
            raise AssertionError(f"migration {name!r} is out of order; expected number {number}")
    return [folder.joinpath(name).read_text(encoding="utf-8") for name in scripts]
