"""Tables on their way to where they are kept: what is added to them, and how they take the place of the last run's."""
