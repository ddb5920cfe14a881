"""The contract: equations, interpretations, cases and verdicts; imports nothing of the rest."""
