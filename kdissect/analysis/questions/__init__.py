"""Questions of every day, answered from tables: the slowest exchanges, errors, gaps, and why a finding is there."""
