"""Controller process: Kafka input, control loop and publication of its effects."""
