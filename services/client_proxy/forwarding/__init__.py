"""A read on its way through the proxy. client_reads.py encodes the keys of callers without a codec; storage_reads.py
begins a lookup. keyhole.client.routing brings it to copies of its keys; scan.py does that for scans, and watch.py for
watches.
"""
