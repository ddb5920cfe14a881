"""One adapter per framework; each imports its framework only inside its own process."""
