"""Files that take the place of others as a whole, and never write through what was there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TextIO


def beside(path: Path) -> tuple[TextIO, str]:
    """A new file in the folder of a path, and its name, which is to be moved there.

    It has the permissions that a file gets; raises OSError.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(name, 0o666 & ~mask)
    return open(handle, "w", encoding="utf-8", errors="replace", newline="\n"), name
