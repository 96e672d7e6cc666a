"""`keyhole codegen`: types for the values of an application's states, in Python and TypeScript, from their descriptors."""
