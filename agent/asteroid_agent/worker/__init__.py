"""The process that trains one stage."""
