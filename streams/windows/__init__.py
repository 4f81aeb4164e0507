"""Window workers: merge the telemetry of all gateways per model and second, on several machines."""
