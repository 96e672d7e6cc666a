"""State servers as pods: what the API server says (api.py), and what a pod is (pods.py)."""
