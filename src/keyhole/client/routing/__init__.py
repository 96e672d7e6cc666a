"""Which server a key is asked of, and what is done where that one fails or is silent: one code for client proxies, and
for clients that ask the servers themselves.

frame.py brings keys to copies of them, one after the other; routes.py says to which; asked.py is one server's share,
or timed_asked.py where lookups are hedged; gathering.py puts the answers together. When lookups are hedged, hedging.py
says, by latency_quantile.py. What is sent to one server is carried on by LookupStream, which gathers the lookups of all
frames into frames of its own, and hands the answers back to each one's Asked. known_servers.py is the interface by
which they learn of servers. direct_servers.py knows it for a client; direct_reads.py sends its lookups.
"""
