"""From a graph file to typed work: readers, fusion, work rules, feature rows."""
