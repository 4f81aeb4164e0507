"""HTTP endpoint of the controller: metrics, status and alerts."""
