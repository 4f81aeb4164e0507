"""Files for state and logs: private, and correct if the disk is full or a process is killed."""
