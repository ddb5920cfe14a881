"""Attention as libraries offer it: one adapter each, of the function or layer that users call.

A module's name is the backend's, with underscores for hyphens. It keeps to what an adapter of a
framework keeps to, and declares the library's own conventions and arithmetic.
"""
