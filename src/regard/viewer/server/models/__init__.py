"""Models behind the server: what they offer, the queue in front of them, their events."""
