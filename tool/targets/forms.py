"""The forms in which a port can be named, and what they have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from qkvac.targets import ports
from qkvac.targets.ports import Port

MODEL: Final = ".onnx"
"""Suffix of a file that holds a model."""


def load(text: str) -> Port:
    """Loads `file.py`, `package.module[:name]` or `model.onnx`; raises PortError.

    For a worker's process only: the code of a port runs.
    """
    if is_model(text):
        from qkvac.targets import models

        return models.load(text)
    return ports.load(text)


def is_model(text: str) -> bool:
    """Whether a port is a model, which cannot declare anything by itself."""
    return text.endswith(MODEL)


def label(text: str) -> str:
    """A short name: a file's without its suffix, a module's last part, and what is meant of it."""
    place, within = ports.split(text)
    path = Path(place)
    short = path.stem if path.suffix in (".py", MODEL) else place.rpartition(".")[2]
    return f"{short}.{within}" if within else short
