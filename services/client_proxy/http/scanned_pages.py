"""The pages of a scan, for answers over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from keyhole.rpc.scan_requests import check_heeded
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.grpc.query_servicer import ProxyServicer


async def scanned_pages(
    servicer: ProxyServicer, request: pb.ScanRequest, deadline: Any
) -> AsyncGenerator[pb.ScanResponse]:
    """Of one call, by the proxy's own servicer. Close it.

    Raises:
        Unsupported: A server has not heeded what is selected.
        KeyholeError: As Scan.
    """
    scan: Any = servicer.Scan(request, deadline)
    async with aclosing(scan) as pages:
        async for page in pages:
            check_heeded(request, page)
            yield page
