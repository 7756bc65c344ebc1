"""One run on the host: its assembly, its loop, what it records."""
