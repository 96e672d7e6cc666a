"""The proxy's gRPC face: who may read, how much at once, and one client's stream of frames."""
