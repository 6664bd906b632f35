"""Arrays: making them, moving them between host and device, views and printing."""
