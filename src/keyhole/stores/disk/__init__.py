"""What the engines on disk share: the directory with its lock and format, and a store's own word of what it holds.

In state servers. No engine's library is imported here.
"""
