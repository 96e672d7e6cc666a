"""`keyhole demo` and `keyhole job`: a job on embedded defaults, a live table of its answers, and a recount at the end.

On one machine, in the command's process. The recount knows nothing of Keyhole but the client, so that a mistake of
Keyhole's can't hide there.
"""
