"""Interpretations without numbers: shapes, costs, structure, typesetting, source text."""
