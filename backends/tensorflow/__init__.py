"""The adapter of TensorFlow."""
