"""The asteroid command, one file a verb."""
