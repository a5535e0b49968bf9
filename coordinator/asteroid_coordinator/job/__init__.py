"""What a job is and what happens next; pure."""
