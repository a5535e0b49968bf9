"""What is on the wire: topics, messages, tensors."""
