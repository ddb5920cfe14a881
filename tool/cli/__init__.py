"""The commands. Nothing heavy is imported before one needs it."""
