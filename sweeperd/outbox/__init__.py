"""What is in Redis about events and deliveries: without threads, without HTTP."""
