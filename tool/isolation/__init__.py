"""Crossing into another process, and out of it alive."""
