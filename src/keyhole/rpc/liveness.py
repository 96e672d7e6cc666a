"""The name by which a server is asked whether it lives: alone, so that the health command needs no server."""

LIVENESS = "liveness"
"""The name under which the health service answers SERVING for as long as the loop turns, also before and after a server
serves: a restart would not help one that is restoring, and would harm one that drains."""
