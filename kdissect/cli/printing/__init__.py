"""What a terminal shows: the first screen, rows, trees, progress."""
