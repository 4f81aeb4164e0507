"""Window workers, on several machines: merge the telemetry of all gateways per model and second."""
