"""The run itself: jobs, judges, results."""
