"""What is made of conformance records: merged, compared, and published as pages and badges."""
