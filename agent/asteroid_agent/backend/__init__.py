"""What computes: one protocol, several engines."""
