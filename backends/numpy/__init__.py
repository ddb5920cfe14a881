"""The adapter of NumPy: in matrix form, and token by token."""
