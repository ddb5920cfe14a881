"""What is wrong with a failing port."""
