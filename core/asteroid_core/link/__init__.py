"""How it gets there: MQTT through paho, and an in-process broker."""
