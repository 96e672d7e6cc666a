"""The RocksDB engine: a store is a database, for states larger than memory and much written to.

In state servers. The only package that imports rocksdict, and it knows nothing of who reads or writes.
"""
