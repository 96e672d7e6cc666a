"""A job as a user writes it, whose image is ours and one file: docs/kubernetes.md, "An image of your own"."""
