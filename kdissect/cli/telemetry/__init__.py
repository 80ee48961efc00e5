"""Commands that send what they found to other systems."""
