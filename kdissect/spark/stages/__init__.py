"""The stages of a job: index, decode, resolve, analyse."""
