"""`keyhole doctor`: looks at all that reads and jobs here need, and says what is wrong and what to do."""
