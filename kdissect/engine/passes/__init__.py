"""One pass over captures: block by block, alone or by several threads."""
