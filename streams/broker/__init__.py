"""Brokers: the embedded one (its own process) and the set-up of a real Kafka."""
