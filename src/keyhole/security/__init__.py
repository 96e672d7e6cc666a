"""Who may connect, who they are and what they may do. No gRPC here: rpc/ and the HTTP ports use it."""
