"""The write path in the driver, from the arguments of queryable's functions to the rows that a batch's tasks stage.

Above the rooms `driver`, `worker` and `declaration`, and below `queryable`, which users import.
"""
