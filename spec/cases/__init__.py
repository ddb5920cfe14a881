"""Inputs with names and reasons, of every profile."""
