"""Room below both planes: logs, tracing, supervision, keys and Kafka clients of a process."""
