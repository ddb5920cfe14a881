"""What is asked besides values: answers to related inputs, and the protocol."""
