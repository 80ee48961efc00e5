"""What a job leaves for the next one, and the job that goes on from it."""
