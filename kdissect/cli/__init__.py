"""The command line: `kdissect CAPTURE` and its commands. No logic of its own: it asks the engine and prints."""
