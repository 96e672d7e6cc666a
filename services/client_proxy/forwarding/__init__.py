"""A read on its way through the proxy. client_reads.py encodes the keys of callers without a codec; storage_reads.py
begins a lookup. frame.py and scan.py bring it to copies of its keys, one after the other where these fail or are
silent. routes.py says to which; gathering.py puts the answers together.

What is sent to one server is carried on by the client library's class LookupStream. It gathers the lookups of all
frames into frames of its own, and hands the answers back to each one's Asked.
"""
