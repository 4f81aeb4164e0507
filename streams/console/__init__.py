"""Console: a page that shows the fleet and its decisions, and the HTTP interface behind it."""
