"""A proxy of several processes: a parent that has their ports and keeps them running, and children that serve.

    parent.py ── child_process.py ═══ a pair of sockets ═══ parent_link.py ── child.py ── app.py
     held_ports.py                        words.py             shares.py

The children listen on the same ports by SO_REUSEPORT. docs/adr/a-proxy-is-several-processes.md says why.
"""
