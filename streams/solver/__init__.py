"""Long work in a process of its own that can be killed: tables and refinements."""
