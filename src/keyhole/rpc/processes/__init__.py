"""What deployables of several processes share: how many there are, what they say to each other, and waiting for it."""
