"""The sandbox of a command's own process: Landlock and seccomp, by ctypes."""
