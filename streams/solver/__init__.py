"""Planner execution: urgent plans in a thread, full plans in a process that can be killed."""
