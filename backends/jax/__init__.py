"""The adapter of JAX."""
