"""Hardware catalogue: devices, links and clusters as data files."""
