"""An epoch's way into the changelog and the stores, and that of updates, through which owner_loop.py leads.

Host thread, but for the names of staged attempts, and where a file says otherwise.
"""
