"""A load balancer for tenonry that keeps each tenant on one engine."""
