"""qkvac: do all these implementations compute the same attention?"""

TYPE_CHECKING = False
"""As in `typing`, which is not imported: see `qkvac.isolation.origins`."""

if TYPE_CHECKING:
    from qkvac.api import assert_conforms, check
    from qkvac.records.report import Report
    from qkvac.usage import UsageError

__version__ = "0.1.0"

__all__ = ["Report", "UsageError", "__version__", "assert_conforms", "check"]

_HOMES = {
    "Report": "qkvac.records.report",
    "UsageError": "qkvac.usage",
    "assert_conforms": "qkvac.api",
    "check": "qkvac.api",
}


def __getattr__(name: str) -> object:
    """The public names, imported when they are first used: the package itself loads nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
