"""Further draws: a case on other random data, and how its id says which.

`…/s3` is the third of those that everybody knows. `…/s8a41c0d2e9b7f365-3` is the third from an
entropy that nobody knew before the run: no port can have learnt its data. The id is all that it
takes to make the same case again.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final

from qkvac.usage import UsageError

ENTROPY: Final = re.compile(r"[0-9a-z]{1,32}")
BYTES: Final = 8
"""Of fresh entropy."""

_ID = re.compile(rf"(?P<base>.+)/s(?:(?P<entropy>{ENTROPY.pattern})-)?(?P<number>[0-9]{{1,6}})")


@dataclass(frozen=True)
class Draw:
    """One of the further draws, counted from 1."""

    number: int
    entropy: str = ""

    def __str__(self) -> str:
        return f"{self.entropy}-{self.number}" if self.entropy else str(self.number)

    @property
    def words(self) -> list[str]:
        """The options of the command line that draw it."""
        drawn = ["--seeds", str(self.number)]
        return [*drawn, "--entropy", self.entropy] if self.entropy else drawn


def draw_of(id: str) -> tuple[str, Draw | None]:
    """The id of the case that a further draw is of, and the draw; the id where it is none."""
    found = _ID.fullmatch(id)
    if found is None:
        return id, None
    return found["base"], Draw(int(found["number"]), found["entropy"] or "")


def entropy(fresh: bool, given: str, sharded: bool = False) -> str:
    """What --secret and --entropy ask for, "" for neither; raises UsageError."""
    if fresh and sharded and not given:
        raise UsageError("every part of a run would draw for itself; give all the same --entropy")
    if given and ENTROPY.fullmatch(given) is None:
        raise UsageError(f"--entropy {given[:40]!r}: it is 1 to 32 digits and small letters")
    return given or (secrets.token_hex(BYTES) if fresh else "")
