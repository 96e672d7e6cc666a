"""`keyhole new`: a folder with a job, a reader, a sample of data and a test, from the files in `template`."""
