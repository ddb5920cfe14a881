"""What declared arithmetic may do to a value: proven bounds, exactness, and the usual spread."""
