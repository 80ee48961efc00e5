"""Tables as files in memory that does not grow with the capture."""
