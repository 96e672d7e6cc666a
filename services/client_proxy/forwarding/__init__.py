"""A read on its way through the proxy. reads.py says what is read. frame.py and scan.py bring it to copies of its keys,
one after the other where these fail or are silent; routes.py says to which.

What is sent to one server is carried on by the client library's class LookupStream. It gathers the lookups of all
frames into frames of its own, and hands the answers back to each one's Asked.
"""
