"""The contract: equations, their interpretations, cases and verdicts; imports nothing of the rest."""
