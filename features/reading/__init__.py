"""A file becomes a graph: load, wire, bind, infer types, convert, clean up."""
