"""What is left in a redacted capture, read by a judge of its own."""
