"""Where in the equations a rule of rewriting finds its place."""
