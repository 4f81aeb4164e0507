"""The brokers: the embedded one (a process of its own) and what a real Kafka needs."""
