"""Encrypted connections: bytes on their way to TLS, and plaintext on its way back."""
