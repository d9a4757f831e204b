"""Public measurements in one schema: a manifest of facts, one reader per source, one builder."""
