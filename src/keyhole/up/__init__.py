"""`keyhole up` and `keyhole down`: what serves states on this machine, in the background, and its data in a folder."""
