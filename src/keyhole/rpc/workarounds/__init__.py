"""What grpcio lacks or does wrong, put right in this process: in servers and clients, each in a module of its own.

Each module's header says the library, the versions that it was seen with, and when the module may go. Nothing here
knows a service or a message of Keyhole's.
"""
