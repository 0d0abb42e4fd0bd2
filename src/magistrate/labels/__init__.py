"""Human labels: sampling policies, label queues, adjudicated decisions and unbiased estimates."""
