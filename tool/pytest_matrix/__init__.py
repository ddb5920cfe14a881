"""The matrix under pytest."""

ROSTER = "qkvac_roster"
"""Key of a worker's input under which xdist's controller passes on what it has asked once."""
