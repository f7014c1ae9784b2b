"""A wafer at an address: the server of a session on another computer, and its client."""
