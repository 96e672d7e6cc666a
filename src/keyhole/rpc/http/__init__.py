"""HTTP ports of services: limits per connection, and errors as application/problem+json.

In the services, on aiohttp. What is served there is the services' own; no gRPC call is made here.
"""
