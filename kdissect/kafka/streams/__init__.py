"""TCP streams to frames, frames to paired exchanges: loss, resynchronisation, TLS and logins included."""
