"""Tables and names, written for a person at a terminal by the command line and the demo.

It knows what it is given, and nothing else of Keyhole: no client, no configuration.
"""
