"""HTTP: who may ask, and how long and large a request may be."""
