"""`keyhole size`: what a load takes, by a model of measured constants, beside the same in Redis."""
