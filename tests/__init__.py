"""The conformance matrix, the suite's tests of itself, and the benchmarks."""
