"""Array types: numpy's by name, columns that grow, dictionaries, packed bytes."""
