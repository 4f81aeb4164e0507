"""What the controller saw and decided, kept on disk so that a span of it can be run again."""
