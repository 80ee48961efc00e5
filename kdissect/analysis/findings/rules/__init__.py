"""The rules: finders by subject."""
