"""The environment of a run: what has to be equal before results may be compared bit for bit."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from typing import Any, Final

import numpy as np

from qkvac.backends.processor import architecture, cpu_features
from qkvac.subjects.roster import Entry
from qkvac.subjects.selection import Options

PRECISION: Final = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_ENABLE_X64",
    "XLA_FLAGS",
    "TF_ENABLE_ONEDNN_OPTS",
    "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "OPENBLAS_CORETYPE",
    "MKL_CBWR",
    "NPY_DISABLE_CPU_FEATURES",
)
"""Environment variables by which a user changes how frameworks compute."""


PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "flax": ("jax", "jaxlib"),
    "equinox": ("jax", "jaxlib"),
    "jax": ("jaxlib",),
    "torch": ("triton",),
}
"""Distributions that compute for another one, and have versions of their own."""


NAMED_LATER: Final = frozenset(
    {
        *("AVX512BF16", "BMI", "BMI2", "CX16", "GFNI", "LAHF", "LSX", "LZCNT", "MOVBE", "RVV"),
        *("SVE", "VAES", "VPCLMULQDQ", "X86_V2", "X86_V3", "X86_V4"),
    }
)
"""Features that only newer releases of NumPy name: without one of them a CPU may have it too."""


@cache
def processor() -> frozenset[str]:
    """What can be said of the processor in a word, in capitals: features, architecture, maker."""
    return cpu_features() | ({architecture(), _of_cpu("vendor_id").upper()} - {""})


def describe(entries: Iterable[Entry], options: Options) -> dict[str, Any]:
    """Everything about this machine and its software that a result may depend on."""
    entries = tuple(entries)
    versions = dict[str, str]()
    for entry in entries:
        versions.update(entry.versions)
        for name in entry.declaration.requires:
            for part in (name, *PARTS.get(name, ())):
                versions.update(_version(part))
    for name in ("numpy", "ml_dtypes", "python-flint"):
        versions[name] = metadata.version(name)
    devices = {entry.subject.device for entry in entries}
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "system": _system(),
        "cpu": _cpu(),
        "cpu_features": sorted(cpu_features()),
        "threads": options.threads,
        "versions": dict(sorted(versions.items())),
        "devices": sorted(devices),
        "accelerators": list(_accelerators()) if devices - {"cpu"} else [],
        "numpy": np.__version__,
        "settings": {name: _text(os.environ[name]) for name in PRECISION if name in os.environ},
    }


def identity(environment: Mapping[str, Any]) -> str:
    """The environment's id: equal environments have equal ids."""
    text = json.dumps(environment, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _version(name: str) -> dict[str, str]:
    """The version of a distribution by its name; nothing where it is not installed."""
    try:
        return {name: metadata.version(name)}
    except metadata.PackageNotFoundError:
        return {}


def _text(value: str) -> str:
    """Text that can be written as UTF-8, whatever bytes the system gave."""
    return value.encode("utf-8", "replace").decode("utf-8")


def _system() -> str:
    """The operating system and the C library, whose functions some frameworks call.

    Not the kernel: it computes nothing, and two machines of one image differ in it.
    """
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    if sys.platform == "win32":
        return f"Windows {platform.version()}"
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return ", ".join(filter(None, (name, " ".join(filter(None, platform.libc_ver())))))


@cache
def _accelerators() -> tuple[str, ...]:
    """Model and driver of each GPU, as far as its maker's tool tells; asked only where one is used.

    The judging process imports no framework that could be asked.
    """
    query = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip())


def _cpu() -> str:
    """The processor's name, as far as the system tells."""
    return _of_cpu("model name") or platform.processor() or platform.machine()


def _of_cpu(field: str) -> str:
    """What Linux says of the first processor; "" where it says nothing."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(field):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""
