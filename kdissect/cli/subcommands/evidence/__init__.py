"""Commands that show what happened: why a finding is there, the slowest exchanges, errors, gaps."""
