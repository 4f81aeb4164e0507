"""Window workers: telemetry of all gateways merged per model and second, beyond one machine."""
