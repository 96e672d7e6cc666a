"""What Keyhole speaks of, as frozen values: a state and its schemas, a run and its epochs, a read and its answer.

Pure, and the same in every process: nothing here knows how a value is encoded, stored or sent.
"""
