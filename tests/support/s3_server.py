"""An S3 in a process of its own, whose buckets are in its memory: `python -m tests.support.s3_server PORT`."""

from __future__ import annotations

import sys

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple


class Handler(WSGIRequestHandler):
    """Of one request."""

    def handle_expect_100(self) -> bool:
        """Says nothing: Werkzeug says "100 Continue" too, and Amazon's asynchronous client waits for ever after two."""
        return True


def main() -> None:
    """Serves until it is killed."""
    application = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=Handler)


if __name__ == "__main__":
    main()
