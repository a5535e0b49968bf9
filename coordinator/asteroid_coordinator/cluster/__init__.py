"""What is known of the devices."""
