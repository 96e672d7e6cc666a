"""The reader processes of a state server: children that answer lookups from its LMDB stores, beside it.

    app.py ── group.py ── reader_process.py ═══ pairs of sockets ═══ reader_child.py ── lookup port
       shown_tables.py ══════════ a number in shared memory ═════════ read_tables.py

docs/adr/a-state-server-s-readers-are-processes.md says why.
"""
