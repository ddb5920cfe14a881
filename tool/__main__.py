"""`python -m qkvac` is the command `qkvac`."""

from __future__ import annotations

from qkvac.cli import main

if __name__ == "__main__":
    main()
