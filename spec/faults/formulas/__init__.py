"""Rules that make wrong equations, or right ones computed worse than the dtype promises."""
