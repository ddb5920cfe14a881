"""Slots: how many processes may use an accelerator at a time, whoever started them.

Each framework's process takes a share of the memory of a GPU, which they do not divide among
themselves; a few at a time fit, and one for every core of the machine would not. Slots are locked
files, so that workers of pytest-xdist and runs side by side count as well, and the system frees
them when a process dies.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

PLACES: Final = 3
"""Processes that may use one accelerator at a time."""
PAUSE: Final = 0.1
VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that decide which device a name like cuda:0 stands for."""


class Slot:
    """A place on a device, held until it is closed; none is needed on the CPU."""

    def __init__(
        self, device: str, stopped: Callable[[], bool] = lambda: False, places: int = PLACES
    ) -> None:
        """Waits until there is a place, or until `stopped` says that none is wanted any more."""
        self._file: int | None = None
        if device.partition(":")[0] == "cpu":
            return
        while not stopped():
            for path in paths(device, places):
                file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._file = file
                    return
                os.close(file)
            time.sleep(PAUSE)

    def close(self) -> None:
        """Frees the place."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def paths(device: str, places: int = PLACES) -> list[Path]:
    """The files that stand for the places on a device."""
    seen = "\n".join([device, *(os.environ.get(name, "") for name in VISIBLE)])
    digest = hashlib.sha256(seen.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"qkvac-slots-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return [folder / f"{digest}-{place}" for place in range(places)]
