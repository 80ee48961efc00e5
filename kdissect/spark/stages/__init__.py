"""The stages of a job: index, decode, resolve, analyse; and the cells that rows travel in between."""
