"""What a user declares of a state, checked and made the state's descriptor.

In the driver, and in Python workers that need the same: the lowest of Spark's rooms, it knows none of the others.
"""
