"""The pytest plugin: options, and nothing else until they are used."""

from __future__ import annotations
