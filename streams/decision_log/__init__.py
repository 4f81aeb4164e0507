"""Decision log: observations and decisions of the controller on disk, for replay."""
