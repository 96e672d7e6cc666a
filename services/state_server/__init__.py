"""The state server: holds key groups of states in stores, commits epochs, answers reads. README.md has a picture."""
