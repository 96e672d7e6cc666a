"""gRPC: channels, servers, and errors as statuses. Importing this imports grpc, and says what it does at a fork."""

import os
import sys

_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"

if "grpc" not in sys.modules and _FORK_SUPPORT not in os.environ:
    # By default gRPC starts its threads again in a child, also where its asyncio API kept it from stopping them before
    # the fork. One in four children was killed by that, whether it used gRPC or not (grpcio 1.85). It looks once. The
    # environment is as it was for the processes that this one starts.
    os.environ[_FORK_SUPPORT] = "0"
    import grpc  # noqa: F401

    del os.environ[_FORK_SUPPORT]
