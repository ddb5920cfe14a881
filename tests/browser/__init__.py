"""The HTML report in a real browser: what people see, find, copy and print."""
