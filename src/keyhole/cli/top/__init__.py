"""`keyhole top`: states and servers with their rates and ages, again and again."""
