"""The environments of the matrix as JSON, for the strategy of a workflow.

    tox list --no-desc -m matrix | python .github/environments.py

Each has the name that tox knows it by and the version of Python that it needs: tox skips an
environment whose Python is missing, and a job that runs nothing would pass.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable


def environments(names: Iterable[str]) -> list[dict[str, str]]:
    """Name and Python of every environment; raises ValueError where a name has no Python."""
    found = list[dict[str, str]]()
    for name in filter(None, map(str.strip, names)):
        factor = re.match(r"py(\d)(\d+)-", name)
        if factor is None:
            raise ValueError(f"no version of Python in {name!r}")
        found.append({"name": name, "python": ".".join(factor.groups())})
    if not found:
        raise ValueError("there is no environment")
    return found


if __name__ == "__main__":
    print(json.dumps(environments(sys.stdin)))
