"""The gRPC faces: query.py for readers, control.py for coordinators, tasks and proxies."""
