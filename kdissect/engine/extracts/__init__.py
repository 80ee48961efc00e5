"""What is taken out of a capture: fewer packets, what may be shown, one exchange explained."""
