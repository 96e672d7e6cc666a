"""The gRPC faces: query.py for readers, state_server.py for coordinators, tasks and proxies."""
