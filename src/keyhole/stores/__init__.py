"""The stores of state servers: what an engine must do (base.py), which there are (engines.py), and ours."""
