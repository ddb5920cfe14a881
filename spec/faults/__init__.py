"""Ways to get attention wrong, derived from the equations; used as mutants and as diagnoses."""
