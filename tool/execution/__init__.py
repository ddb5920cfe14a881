"""What is asked of whom, in which order, and the asking."""
