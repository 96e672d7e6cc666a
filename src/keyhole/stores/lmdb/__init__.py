"""The LMDB engine: a store is an environment, a snapshot a read transaction.

In state servers. The only package that imports lmdb, and it knows nothing of who reads or writes.
"""
