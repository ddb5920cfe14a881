"""Numbers to call a port with: the same bits everywhere, shaped so that a mistake shows."""
