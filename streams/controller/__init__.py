"""Controller process: reads Kafka, runs the control loop and publishes its effects."""
