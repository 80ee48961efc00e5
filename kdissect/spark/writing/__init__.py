"""Tables on their way to their folders: what is added to them, and how they take the place of the last run's."""
