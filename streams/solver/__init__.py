"""Where plans are made: urgent ones in a thread, full ones in a process that can be killed."""
