"""The commands: what is typed, what is shown."""
