"""Runs a plan in virtual time; pure."""
