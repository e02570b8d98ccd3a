"""Writing a file whole or not at all. Standard library only."""

from __future__ import annotations

import os
import pathlib


def write(path: pathlib.Path, text: str) -> None:
    """A text that may have what no encoding has: half a surrogate pair, in an error of the user's."""
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_whole(path: pathlib.Path, text: str) -> None:
    """The same, beside and then in the place of what is there: that stays, if it cannot be written."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        write(draft, text)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
