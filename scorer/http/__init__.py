"""How a request arrives and an answer leaves: protocol, bodies, limits, probes, pages."""
