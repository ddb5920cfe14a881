"""Certified true values: which arithmetic proves them, and how sharply."""
