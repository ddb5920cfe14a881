"""What is under test: how it is named, declared and loaded."""
