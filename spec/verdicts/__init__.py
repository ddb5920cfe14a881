"""From outputs to verdicts: the clauses, and what can become of a quantity."""
