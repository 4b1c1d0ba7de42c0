"""A running server: HTTP, configuration, and the command line."""
