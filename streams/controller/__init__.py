"""The controller: Faust application, telemetry hot path, ticks, and the way of effects out."""
