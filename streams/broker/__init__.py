"""The two brokers: the embedded one (`embedded`, a process of its own) and a real Kafka (`admin`)."""
