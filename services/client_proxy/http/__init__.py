"""The proxy's reads over HTTP and JSON."""
