"""How the project's kernels are written, compiled and called."""
