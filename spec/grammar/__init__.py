"""The closed language of equations: nodes, operations, parser, printer, evaluation, derivative."""
