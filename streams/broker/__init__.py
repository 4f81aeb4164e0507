"""Brokers: the embedded broker (its own process) and the set-up of a real Kafka cluster."""
