"""Output for terminals: the first screen, rows, trees, progress."""
