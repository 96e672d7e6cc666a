"""`keyhole codegen`: types for the values of states, in Python and in TypeScript, from their descriptors."""
