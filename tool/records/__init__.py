"""What is kept and said of a run."""
