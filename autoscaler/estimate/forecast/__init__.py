"""What will be asked when an instance that is started now would be ready."""
